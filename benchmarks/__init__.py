"""Side by side with other runtimes: same model, same input, same threads, measured in turns in one process."""
