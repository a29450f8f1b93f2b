"""The job file that `shoal init` writes: YAML, every field that a first job needs, each with what it is for."""

import json

IMAGE = "pytorch-training:2.13.0-cpu-py311-debian12-sagemaker"

_TEMPLATE = """\
# A training job: the request that SageMaker takes as CreateTrainingJob. Paths start at this file's folder.
#   shoal validate JOB_FILE   is it one the service would take?
#   shoal run JOB_FILE        run it on this machine, one container a host
# Completion in an editor: `shoal schema > job.schema.json`, and this line without its first #:
# # yaml-language-server: $schema=job.schema.json

TrainingJobName: {name}  # a name can be used once; --job-name gives another
RoleArn: arn:aws:iam::000000000000:role/local  # any will do here; the service needs a real one

AlgorithmSpecification:
  TrainingImage: {image}
  TrainingInputMode: File  # or FastFile, or Pipe
  # What the script prints of its progress: shown while the job runs, and in its description.
  # MetricDefinitions:
  #   - Name: train:loss
  #     Regex: loss=([0-9.]+)

# Short for hyperparameters, as in the SageMaker Python SDK: how the script is started on several hosts or GPUs.
# Other forms: smdistributed.dataparallel, smdistributed.modelparallel, torch_distributed, mpi, parameter_server.
distribution:
  pytorchddp:
    enabled: true

HyperParameters:  # every value is a string
  sagemaker_submit_directory: file://source  # the folder with the script
  sagemaker_program: train.py
  epochs: "3"

InputDataConfig:
  - ChannelName: train  # the script finds it in /opt/ml/input/data/train, and in SM_CHANNEL_TRAIN
    DataSource:
      S3DataSource:
        S3DataType: S3Prefix
        S3Uri: file://data/train  # or s3://BUCKET/PREFIX

OutputDataConfig:
  S3OutputPath: file://runs  # the results: runs/{plain_name}/; or s3://BUCKET/PREFIX

# What the script leaves in /opt/ml/checkpoints is kept there, and is there again when the job is started again.
# CheckpointConfig:
#   S3Uri: file://checkpoints

ResourceConfig:
  InstanceType: ml.c5.xlarge
  InstanceCount: {hosts}  # the number of hosts
  VolumeSizeInGB: 10

StoppingCondition:
  MaxRuntimeInSeconds: 3600

# Environment:  # variables of every host
#   NCCL_DEBUG: INFO
"""


def job_file(name: str, image: str, hosts: int) -> str:
    """Return the text of a job file."""
    return _TEMPLATE.format(name=json.dumps(name), plain_name=name, image=json.dumps(image), hosts=hosts)
