"""PyTorch: balance(model, loader)."""
