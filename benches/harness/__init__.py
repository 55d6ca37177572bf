"""What programs that train share: links, ranks, tasks, methods, learning rates."""
