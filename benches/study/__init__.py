"""Over which links compression pays, and with how many ranks: time to the accuracy of dense DDP."""
