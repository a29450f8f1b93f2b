# Row 2.13-cpu of versions.yaml: torch 2.13.0, cpu, Python 3.11, debian12.
# Generated from images/templates/ by `shoal render`: please edit those, not this.
#
# By hand, from the root of the repository:
#   mkdir -p wheelhouse/2.13-cpu && docker build --file images/rendered/2.13-cpu.Dockerfile .

# ---- base: what every stage stands on -------------------------------------------------------------------------------
FROM shoal-base:debian12 AS base
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=apt.conf,mode=0444 \
    --mount=type=secret,id=sources.list,mode=0444 \
    --mount=type=cache,target=/var/cache/apt,id=shoal-apt-cache-bookworm,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,id=shoal-apt-lists-bookworm,sharing=locked \
    /build/scripts/apt-install.sh \
        ca-certificates \
        libgomp1 \
        openmpi-bin \
        openssh-client \
        openssh-server \
        python3 \
        python3-venv
# Keys belong to a job, never to an image: `train` makes them when a job starts.
RUN rm -f /etc/ssh/ssh_host_* && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1

# ---- torch: the large layer, the same until a version changes ---------------------------------------------------------
FROM base AS torch
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=pip.conf,mode=0444 \
    --mount=type=bind,source=images/locks/2.13-cpu.txt,target=/build/2.13-cpu.txt \
    --mount=type=bind,source=wheelhouse/2.13-cpu,target=/build/wheelhouse \
    /build/scripts/pip-install.sh /build/2.13-cpu.txt

# ---- smddp-builder: the first stage with a compiler --------------------------------------------------------------------
FROM torch AS smddp-builder
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=apt.conf,mode=0444 \
    --mount=type=secret,id=sources.list,mode=0444 \
    --mount=type=cache,target=/var/cache/apt,id=shoal-apt-cache-bookworm,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,id=shoal-apt-lists-bookworm,sharing=locked \
    /build/scripts/apt-install.sh \
        g++ \
        libc6-dev \
        python3-dev
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=pip.conf,mode=0444 \
    --mount=type=bind,source=images/locks/build-py311.txt,target=/build/build-py311.txt \
    --mount=type=bind,source=wheelhouse/2.13-cpu,target=/build/wheelhouse \
    /build/scripts/pip-install.sh /build/build-py311.txt
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=bind,source=smddp_core,target=/build/smddp_core \
    /build/scripts/build-wheel.sh /build/smddp_core /wheels

# ---- entrypoint-builder: its host name shim needs the compiler too --------------------------------------------------------
FROM smddp-builder AS entrypoint-builder
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=bind,source=entrypoint,target=/build/entrypoint \
    /build/scripts/build-wheel.sh /build/entrypoint /entrypoint-wheels

# ---- runtime: torch, Open MPI and the collective library ----------------------------------------------------------------
FROM torch AS runtime
RUN --mount=type=bind,from=smddp-builder,source=/wheels,target=/wheels \
    pip install --quiet --no-index --no-deps --no-cache-dir /wheels/*.whl \
    && python -c "import smdistributed.dataparallel.torch.torch_smddp"

# ---- sagemaker: the container contract (docs/train.md) --------------------------------------------------------------------
FROM runtime AS sagemaker
RUN --mount=type=bind,source=images/scripts,target=/build/scripts \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=secret,id=proxy.env,mode=0444 \
    --mount=type=secret,id=pip.conf,mode=0444 \
    --mount=type=bind,source=images/locks/container-py311.txt,target=/build/container-py311.txt \
    --mount=type=bind,source=wheelhouse/2.13-cpu,target=/build/wheelhouse \
    /build/scripts/pip-install.sh /build/container-py311.txt
# In front of Open MPI's and OpenSSH's own: images/files/ says why.
RUN dpkg-divert --quiet --divert /usr/lib/openssh/sshd --rename /usr/sbin/sshd
COPY images/files/sshd /usr/sbin/
COPY images/files/mpirun /usr/local/bin/
RUN --mount=type=bind,from=entrypoint-builder,source=/entrypoint-wheels,target=/wheels \
    pip install --quiet --no-index --no-deps --no-cache-dir /wheels/*.whl \
    && mkdir -p /opt/ml/code /opt/ml/input/config /opt/ml/input/data /opt/ml/model /opt/ml/output/data
# The names of com.amazonaws are those that SageMaker's own images carry, and tools look for.
LABEL org.opencontainers.image.title="pytorch-training" \
      org.opencontainers.image.version="2.13.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      com.amazonaws.ml.engines.sagemaker.dlc.framework.pytorch.2-13-0="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.device.cpu="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.arch.x86="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.python.py311="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.os.debian12="true" \
      com.amazonaws.ml.engines.sagemaker.dlc.job.training="true" \
      dev.shoal.row="2.13-cpu"
WORKDIR /opt/ml/code
CMD ["bash"]
