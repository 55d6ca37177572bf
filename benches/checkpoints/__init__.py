"""What training keeps: activations between forward and backward."""
