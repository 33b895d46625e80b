# The engine server with the torch engine, from a checkout:
#   docker build -f deploy/docker/engine.Dockerfile -t enginewire-engine:0.2.0 .
# PyPI's PyTorch brings 4 GB of CUDA. Without a GPU: --build-arg TORCH_INDEX= with the address of PyTorch's index for
# CPUs, which its own site names. There are others for other versions of CUDA.
# Another engine: --build-arg EXTRAS=server,metrics --build-arg TORCH= leaves torch out, for the mocker or one of yours.
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto/enginewire proto/enginewire
COPY engine_server/enginewire engine_server/enginewire
COPY backend_client/enginewire backend_client/enginewire
COPY conformance/enginewire conformance/enginewire
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS install
ARG TORCH=torch
ARG TORCH_INDEX=
ARG EXTRAS=engine,guided,metrics
RUN python -m venv /opt/enginewire
ENV PATH=/opt/enginewire/bin:$PATH
COPY .ci/constraints.txt /constraints.txt
# Before the others: what takes longest to fetch changes least.
RUN test -z "$TORCH" || \
    pip install --no-cache-dir --constraint /constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --constraint /constraints.txt "$(echo /wheels/enginewire-*.whl)[$EXTRAS]"

FROM ${PYTHON_IMAGE}
# The same number in both images: a Unix socket is its owner's alone.
RUN groupadd --gid 10001 enginewire \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin enginewire \
    && install --directory --mode 0700 --owner 10001 --group 10001 /run/enginewire
COPY --from=install /opt/enginewire /opt/enginewire
COPY deploy/docker/healthcheck.py /opt/healthcheck.py
ENV PATH=/opt/enginewire/bin:$PATH \
    ENGINEWIRE_HEALTH_PORT=50059
USER 10001:10001
STOPSIGNAL SIGTERM
# Asks whether it is ready. A model that is being loaded has ten minutes.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=600s \
    CMD ["python", "/opt/healthcheck.py", "127.0.0.1:50059", "enginewire.v1.EngineService"]
ENTRYPOINT ["enginewire-server"]
CMD ["--uds", "/run/enginewire/engine.sock"]
