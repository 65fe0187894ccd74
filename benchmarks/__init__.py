"""What is measured: the training task, and our own speed."""
