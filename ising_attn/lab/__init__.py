"""What every experiment shares: settings, run folders, checkpoints, training, progress."""
