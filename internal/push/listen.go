package push

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

const (
	maxMessage    = 4 << 20 // from a sidecar: acknowledgements only
	pingEvery     = 30 * time.Second
	pingTimeout   = 10 * time.Second
	minClientPing = 10 * time.Second
)

// Serve serves until the context ends; then it asks the sidecars to connect elsewhere and leaves them time for it.
func (s *Server) Serve(ctx context.Context, l net.Listener, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) error {
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS13})),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
	)
	pushv1.RegisterPushServiceServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve sidecars: %w", err)
	case <-ctx.Done():
	}
	s.Drain()
	timer := s.o.Clock.NewTimer(drainSpread)
	defer timer.Stop()
	<-timer.C()
	g.Stop()
	return nil
}
