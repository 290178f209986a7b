"""One step of training: a batch to features, to scores, to the share of one rank among all."""
