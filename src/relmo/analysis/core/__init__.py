"""What all analyses need: recurrent layers as plain weights, traces, ablation, features, effects, pictures."""
