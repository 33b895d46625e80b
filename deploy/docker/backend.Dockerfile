# The backend, from a checkout: text over gRPC and HTTP. No torch, no model.
#   docker build -f deploy/docker/backend.Dockerfile -t enginewire-backend:0.2.0 .
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
ARG EXTRAS=http
RUN python -m venv /opt/enginewire
ENV PATH=/opt/enginewire/bin:$PATH
COPY .ci/constraints.txt /constraints.txt
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
    ENGINEWIRE_BACKEND_HEALTH_PORT=50059
USER 10001:10001
STOPSIGNAL SIGTERM
# Asks whether it is ready, which it is while an engine is.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=600s \
    CMD ["python", "/opt/healthcheck.py", "127.0.0.1:50059", "enginewire.v1.BackendService"]
ENTRYPOINT ["enginewire-backend", "serve"]
CMD ["--target", "unix:/run/enginewire/engine.sock", "--connect-timeout", "600"]
