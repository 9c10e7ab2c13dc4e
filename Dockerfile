# The service and the worker: docker build -t urifilter .
# docs/deployment.md says how to run it; compose.yaml runs it with all that it needs.

FROM python:3.13-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY cli cli
COPY lua lua
COPY urifilter_redis urifilter_redis
RUN python -m venv --without-pip /opt/urifilter
RUN pip --python /opt/urifilter/bin/python install --no-cache-dir '.[server]'

FROM python:3.13-slim-bookworm
COPY --from=build /opt/urifilter /opt/urifilter
# It listens at all addresses of the container, so it wants tokens. Its notes, and an archive in a folder, need a volume.
ENV PATH=/opt/urifilter/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    URIFILTER_DATA_DIR=/var/lib/urifilter/data \
    URIFILTER_HOST=0.0.0.0
RUN install -d -o 10001 -g 10001 /var/lib/urifilter
USER 10001:10001
VOLUME /var/lib/urifilter
EXPOSE 8000
# A worker has no port: run it without this check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/healthz'); exit(c.getresponse().status != 200)"]
ENTRYPOINT ["urifilter"]
CMD ["serve"]
