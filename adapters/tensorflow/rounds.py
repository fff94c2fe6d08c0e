"""Speaks to the manager for the workers of a ParameterServerStrategy, whose processes run no code of ours.

A round is some steps of every worker: it closes when each has made one at least since the round before. Each worker
then reports its steps, samples and own time of the round as one iteration. Knows nothing of TensorFlow.
"""

import logging
from typing import Any

import numpy as np

from lbbsp.core.sizing import fits
from lbbsp.errors import ServiceError
from lbbsp.protocol import Report
from lbbsp.worker import embedded
from lbbsp.worker.choice import choice_options, tell_unheard
from lbbsp.worker.client import Client
from lbbsp.worker.keyfile import client_curve
from lbbsp.worker.session import NOBODY, Reach
from lbbsp.worker.terms import Offer, Terms, hello
from lbbsp.worker.vector import IntArray

log = logging.getLogger(__name__)

WARM_UP_ROUNDS = 3


class Rounds:
    """The workers' clients, all in the coordinator's process.

    Args:
        terms: what holds for the job.
        offers: one for each worker.
        sizes: (workers,) at the start.
    """

    def __init__(self, terms: Terms, offers: list[Offer], sizes: IntArray) -> None:
        self._terms, self.sizes = terms, sizes
        self._child: embedded.Embedded | None = None
        reach = self._reach(offers[0])
        self._clients = [
            Client(reach.address, hello(terms, offer, rank, ()), curve=reach.curve) for rank, offer in enumerate(offers)
        ]
        self._reported = np.zeros((len(offers), 3))
        self._round = 0
        self._based_on = -1
        self.changes = 0

    def turn(self, ledger: Any) -> IntArray | None:
        """Take in the ledger, (workers, 3): steps, samples, own time; new sizes where the manager has some."""
        news = ledger - self._reported
        if (news[:, 0] >= 1).all():
            self._reported = ledger
            self._round += 1
            for rank, (steps, samples, own_time_s) in enumerate(news):
                self._report(rank, int(steps), int(samples), float(own_time_s))
        for client in self._clients:
            client.pump()
        return self._newer()

    def close(self) -> None:
        """Say bye; an embedded manager ends."""
        for client in self._clients:
            client.close()
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _report(self, rank: int, steps: int, samples: int, own_time_s: float) -> None:
        self._clients[rank].report(
            Report(
                job=self._terms.job,
                incarnation=self._terms.incarnation,
                rank=rank,
                iteration=self._round,
                samples=samples,
                draws=steps,
                own_time_s=max(own_time_s, 1e-9),
                settled=self._round > WARM_UP_ROUNDS,
            )
        )

    def _newer(self) -> IntArray | None:
        plan = self._clients[0].plan()
        if plan is None or plan.based_on_iteration <= self._based_on:
            return None
        self._based_on = plan.based_on_iteration
        sizes = np.array(plan.sizes, dtype=np.int64)
        why = fits(sizes, self._terms.bounds)
        if why is not None:
            log.warning("plan %d does not fit and is ignored: %s", plan.version, why)
            return None
        if np.array_equal(sizes, self.sizes):
            return None
        self.sizes = sizes
        self.changes += 1
        return sizes

    def _reach(self, offer: Offer) -> Reach:
        if offer.manager:
            tell_unheard(offer.predictor, offer.rule, offer.manager)
            return Reach(offer.manager, client_curve())
        try:
            self._child = embedded.start(options=choice_options(offer.predictor, offer.rule))
        except ServiceError as error:
            log.warning("%s; training goes on with equal sizes", error)
            return Reach(NOBODY)
        return Reach(self._child.address, self._child.curve)
