"""Templates of what other systems read: Kubernetes manifests (k8s/) and Open MPI files (mpi/)."""
