"""`pslaunch check`: inspection of all nodes before anything is sent, and its findings."""
