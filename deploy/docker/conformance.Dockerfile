# The kit alone, from a checkout:
#   docker build -f deploy/docker/conformance.Dockerfile -t enginewire-conformance:0.2.0 .
#   docker run --rm --read-only --network host enginewire-conformance:0.2.0 --target 127.0.0.1:50051
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY LICENSE ./
COPY proto/enginewire proto/enginewire
COPY conformance conformance
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels ./conformance

FROM ${PYTHON_IMAGE} AS install
RUN python -m venv /opt/enginewire
ENV PATH=/opt/enginewire/bin:$PATH
COPY .ci/constraints.txt /constraints.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --constraint /constraints.txt /wheels/*.whl

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 enginewire \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin enginewire
COPY --from=install /opt/enginewire /opt/enginewire
ENV PATH=/opt/enginewire/bin:$PATH
USER 10001:10001
# Reports are written where the caller mounts a folder.
WORKDIR /reports
ENTRYPOINT ["enginewire-conformance"]
