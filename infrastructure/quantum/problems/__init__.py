"""What is asked: decisions of training as binary problems, and the plain answers to each."""
