# syntax=docker/dockerfile:1
# `weir report`, standalone and for the Spark operator: run `docker build -f helm/docker/report.Dockerfile -t weir-report:0.3.0.dev0 .`
ARG PYTHON=3.11
ARG SPARK=4.0.1

# Only the entry point is used. Spark on Kubernetes starts drivers and executors through it, and it runs any other command as is.
FROM docker.io/apache/spark:${SPARK} AS spark

FROM docker.io/library/python:${PYTHON}-slim-bookworm AS build
ARG SPARK
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY .ci/build_backend.py .ci/
COPY helm/systemd helm/systemd
COPY protocol protocol
COPY gateway gateway
RUN python -m venv /opt/weir && /opt/weir/bin/pip install '.[reports]' "pyspark==${SPARK}"
# The chart needs paths that do not depend on Python's version.
RUN ln -s "$(/opt/weir/bin/weir report --where)" /opt/weir/report.py \
 && ln -s "$(/opt/weir/bin/python -c 'import pyspark; print(pyspark.__path__[0])')" /opt/weir/spark

FROM docker.io/library/python:${PYTHON}-slim-bookworm
RUN apt-get update \
 && apt-get install --no-install-recommends --yes openjdk-17-jre-headless tini procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin weir \
 && install -d -o weir -g weir /var/lib/weir-report /opt/spark/work-dir
COPY --from=build /opt/weir /opt/weir
COPY --from=spark /opt/entrypoint.sh /opt/entrypoint.sh
ENV PATH=/opt/weir/bin:$PATH SPARK_HOME=/opt/weir/spark PYSPARK_PYTHON=/opt/weir/bin/python PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/var/lib/weir-report/.cache
WORKDIR /opt/spark/work-dir
USER 10001:10001
LABEL org.opencontainers.image.title="Weir reports" org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.description="weir report: reads the throttle ledger of Weir with Spark, and writes its reports"
ENTRYPOINT ["/opt/entrypoint.sh"]
CMD ["weir", "report", "--help"]
