"""`torch.cuda` and `torch.accelerator`, as the virtual device answers for them."""
