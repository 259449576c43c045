# Images of Sluice: docker build --target operator|sidecar|shop .
# Where the builder's base can't be pulled, build the binaries with `make build shop` and put
# the folder in place of stage "bin": --build-context bin=bin --build-arg BASE=scratch
ARG GO_VERSION=1.26
ARG BASE=gcr.io/distroless/static-debian12:nonroot

FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
ARG TARGETOS TARGETARCH VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH make build shop VERSION=$VERSION

FROM scratch AS bin
COPY --from=build /src/bin/ /

FROM ${BASE} AS operator
COPY --from=bin /sluice-operator /sluice-operator
USER 65532:65532
ENTRYPOINT ["/sluice-operator"]

# Runs as the sidecar; `sluice-sidecar init` is the init container that redirects traffic to it.
FROM ${BASE} AS sidecar
COPY --from=bin /sluice-sidecar /sluice-sidecar
USER 65532:65532
ENTRYPOINT ["/sluice-sidecar"]

FROM ${BASE} AS shop
COPY --from=bin /shop /shop
USER 65532:65532
ENTRYPOINT ["/shop"]
