"""training: captured forward, backward and optimizer steps.

training_step.py whole training steps
make_graphed_callables.py
                 torch.cuda.make_graphed_callables, warmed up where it captures
gradients.py     a captured function whose inputs need gradients
bucketed_gradients.py
                 the same in buckets: arguments padded before it, results cut after it
"""
