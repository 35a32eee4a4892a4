# relmo serve in a container: Debian slim, CPU, no root.
#
#   docker build -t relmo .
#   docker run --rm -p 8322:8322 -e RELMO_TOKEN=choose-a-long-one -v "$PWD/models:/models:ro" relmo small ner
#
# Models are folders in /models, or names of models that ship. docs/serving.md has more.

FROM python:3.12-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/relmo
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/relmo/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch>=2.6,<2.14"
COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY src /src/src
RUN /opt/relmo/bin/pip install --no-cache-dir "/src[serve]"

FROM python:3.12-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home --home-dir /tmp relmo
COPY --from=build /opt/relmo /opt/relmo
ENV PATH=/opt/relmo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /models
EXPOSE 8322
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8322/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["relmo", "serve", "--host", "0.0.0.0", "--device", "cpu"]
CMD ["small"]
