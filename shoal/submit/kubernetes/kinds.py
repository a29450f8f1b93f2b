"""The objects of a job, for each kind that a cluster may know. Pure functions, in the order of their creation."""

from typing import Any

from shoal.submit.kubernetes import pod, protection
from shoal.submit.kubernetes.options import Options, check_name
from shoal.submit.portable import Portable

Manifest = dict[str, Any]

_MOST_SLOTS = (1 << 31) - 1  # of the operator's integer
_PROCESSES = "sagemaker_mpi_num_of_processes_per_host"


def manifests(job: Portable, options: Options) -> list[Manifest]:
    """Return everything that is sent for a job; the last object is the job itself, the others are its parts.

    Raises:
        ShoalError: the job cannot be called so, or its files are too large.
    """
    check_name(job, options.kind)
    parts = [pod.config_map(job, options)]
    parts += [protection.secret(job, options)] if options.secret else []
    parts += [protection.network_policy(job, options)] if options.network_policy else []
    if options.kind == "Job":
        return [*parts, _service(job, options), _indexed_job(job, options)]
    if options.kind == "MPIJob":
        return [*parts, _mpi_job(job, options)]
    if options.kind == "PyTorchJob":
        return [*parts, _pytorch_job(job, options)]
    return [*parts, _train_job(job, options)]


def _environment(job: Portable, options: Options, *more: Manifest) -> list[Manifest]:
    secret = [protection.secret_variable(job)] if options.secret else []
    return pod.environment(job, options, *secret, *more)


def _metadata(job: Portable, options: Options) -> Manifest:
    return {"name": job.name, "namespace": options.namespace, "labels": pod.labels(job)}


def _service(job: Portable, options: Options) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, options),
        # Hosts look for one another before any of them is ready.
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": pod.labels(job)},
    }


def _indexed_job(job: Portable, options: Options) -> Manifest:
    env = _environment(job, options)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, options),
        "spec": {
            "completionMode": "Indexed",
            "completions": job.hosts,
            "parallelism": job.hosts,
            "backoffLimit": 0,  # one host cannot come back into a running job
            "activeDeadlineSeconds": job.max_runtime_s,
            "template": pod.template(job, options, "train", env, subdomain=job.name, restartPolicy="Never"),
        },
    }


def _run_policy(job: Portable) -> Manifest:
    return {"activeDeadlineSeconds": job.max_runtime_s, "backoffLimit": 0, "cleanPodPolicy": "Running"}


def _mpi_job(job: Portable, options: Options) -> Manifest:
    """Every host runs `train`, the launcher too: so each has the same contract, and mpirun is started by `train`."""
    # The names, in full, that the operator's own hostfile has: Open MPI compares them with --host letter by letter.
    names = [f"{job.name}-launcher", *(f"{job.name}-worker-{index}" for index in range(job.hosts - 1))]
    hosts = ",".join(f"{name}.{job.name}.{options.namespace}.svc" for name in names)
    env = _environment(job, options, {"name": "SHOAL_HOSTS", "value": hosts})
    template = pod.template(job, options, "train", env)
    replicas = {"Launcher": {"replicas": 1, "restartPolicy": "Never", "template": template}}
    if job.hosts > 1:
        replicas["Worker"] = {"replicas": job.hosts - 1, "restartPolicy": "Never", "template": template}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": _metadata(job, options),
        "spec": {
            "slotsPerWorker": _slots(job, options),
            "runLauncherAsWorker": True,
            "runPolicy": _run_policy(job),
            "mpiReplicaSpecs": replicas,
        },
    }


def _slots(job: Portable, options: Options) -> int:
    text = job.hyperparameters.get(_PROCESSES, options.limits.get("nvidia.com/gpu", "1"))
    return max(1, min(int(text), _MOST_SLOTS)) if text.isdecimal() else 1


def _pytorch_job(job: Portable, options: Options) -> Manifest:
    template = pod.template(job, options, "pytorch", _environment(job, options))  # the name the operator looks for
    replicas = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}}
    if job.hosts > 1:
        replicas["Worker"] = {"replicas": job.hosts - 1, "restartPolicy": "Never", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(job, options),
        "spec": {"runPolicy": _run_policy(job), "pytorchReplicaSpecs": replicas},
    }


def _train_job(job: Portable, options: Options) -> Manifest:
    env = _environment(job, options)
    trainer: Manifest = {"image": job.image, **pod.command(job), "numNodes": job.hosts, "env": env}
    if options.limits:
        trainer["resourcesPerNode"] = {"limits": options.limits}
    needed = pod.volumes(job, options)
    mounted = {"name": "node", "volumeMounts": needed.mounts}
    template = {
        "metadata": {"labels": pod.labels(job)},
        "spec": {**pod.placement(options), "containers": [mounted], "volumes": needed.volumes},
    }
    replicated = {"name": "node", "template": {"spec": {"template": template}}}  # the runtime's own name
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(job, options),
        "spec": {
            "runtimeRef": {"name": options.runtime},
            "activeDeadlineSeconds": job.max_runtime_s,
            "trainer": trainer,
            "runtimePatches": [
                {
                    "manager": "shoal",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        },
    }
