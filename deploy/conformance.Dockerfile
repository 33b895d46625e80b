# The kit alone, from a checkout:
#   docker build -f deploy/conformance.Dockerfile -t enginewire-conformance .
#   docker run --rm --network host enginewire-conformance --target 127.0.0.1:50051
FROM python:3.12-slim AS build
COPY LICENSE /src/LICENSE
COPY proto/enginewire /src/proto/enginewire
COPY conformance /src/conformance
RUN pip install --no-cache-dir --prefix /kit /src/conformance

FROM python:3.12-slim
COPY --from=build /kit /usr/local
RUN useradd --create-home kit
USER kit
WORKDIR /home/kit
ENTRYPOINT ["enginewire-conformance"]
