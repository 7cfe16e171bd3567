"""What launcher and runtime share: the environment contract, ports, interfaces, the proof of the secret."""
