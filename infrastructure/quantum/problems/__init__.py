"""What is asked: decisions of training as binary problems, and the baselines to each."""
