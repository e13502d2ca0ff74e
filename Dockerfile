# docker build -t tidegate . && docker run -p 8080:8080 tidegate
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p tidegate-server

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --no-create-home tidegate
COPY --from=build /src/target/release/tidegate /usr/local/bin/tidegate
# In the place of envoyproxy/ratelimit: docs/envoy.md.
RUN ln -s /usr/local/bin/tidegate /bin/ratelimit
# By number, so that Kubernetes can tell that it is not root.
USER 10001
# The loopback address of a container cannot be reached from outside. A mounted config beats this:
#   docker run -p 8080:8080 -v ./tidegate.toml:/etc/tidegate.toml tidegate serve --config /etc/tidegate.toml
ENV TIDEGATE_HTTP_DEFAULT=0.0.0.0:8080
EXPOSE 8080
ENTRYPOINT ["tidegate"]
CMD ["serve"]
