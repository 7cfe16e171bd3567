"""`pslaunch check`: looks at every node before anything is sent, and judges what it found."""
