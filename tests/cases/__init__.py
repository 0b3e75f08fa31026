"""What several test modules share: sample calls, workloads and networks. It contains no tests."""
