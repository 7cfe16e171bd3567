"""The cluster that run.sh trains on. Put your own hosts in; docs/options.md has every name."""

# user@host, user@host:port, an alias of ~/.ssh/config, or many: "node[01-16]". The first one keeps the model.
# A host that is named twice gets two pservers and two trainers.
HOSTS = [
    "root@192.168.100.17",
    "root@192.168.100.18",
    "root@192.168.100.19",
]

# The workspace is sent to ROOT_DIR/JOB_NAME of every host.
ROOT_DIR = "/home/paddle"
JOB_NAME = "word2vec"

# The network: an interface that all hosts have, and the pservers' ports.
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_PORTS_NUM = 2
PADDLE_PORTS_NUM_FOR_SPARSE = 2

PADDLE_USE_GPU = "False"

# Every other name in capitals is a variable of all processes.
LD_LIBRARY_PATH = "/usr/local/cuda/lib64:/usr/lib64"
