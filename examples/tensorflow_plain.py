"""A MultiWorkerMirroredStrategy job: start it once for each worker, with TF_CONFIG set (see docs/tensorflow.md)."""

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 128


def samples():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(4096, 32)).astype("float32")
    teacher = generator.normal(size=(32, 8))
    return inputs, (inputs @ teacher).argmax(axis=1)


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        tf.keras.utils.set_random_seed(0)
        layers = [tf.keras.Input((32,)), tf.keras.layers.Dense(256, activation="relu"), tf.keras.layers.Dense(8)]
        model = tf.keras.Sequential(layers)
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    inputs, labels = samples()
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).shuffle(4096).batch(GLOBAL_BATCH)
    dataset = strategy.experimental_distribute_dataset(dataset)

    def replica_step(inputs, labels):
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function(reduce_retracing=True)
    def step(inputs, labels):
        strategy.run(replica_step, args=(inputs, labels))

    for epoch in range(3):
        for batch in dataset:
            step(*batch)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(inputs)))
        print(f"epoch {epoch}: loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
