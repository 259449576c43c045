// Package push keeps the sidecar's end of the push stream: it connects again for ever, hands Updates over and
// acknowledges them, and keeps the last one where a restarted sidecar finds it.
package push

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-dev/sluice/internal/clock"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// Options of a Client.
type Options struct {
	Address   string // host:port of the operator
	CAFile    string // PEM; read anew for each connection
	TokenFile string // read anew for each connection
	StateDir  string // memory-backed; "" keeps nothing
	Version   string // of this sidecar
	Clock     clock.Clock
	Log       *slog.Logger
	// Load puts an Update in force and returns one result a policy.
	Load func(*pushv1.Update) ([]*pushv1.PolicyResult, error)
}

const (
	firstBackoff = 200 * time.Millisecond
	lastBackoff  = 10 * time.Second
	maxMessage   = 32 << 20
	refreshQueue = 16
	refreshEvery = 10 * time.Second // of one issuer
)

// Client is the sidecar's end of the stream.
type Client struct {
	o       Options
	refresh chan *pushv1.KeyRefresh
	// held is what the sidecar enforces, told in Hello.
	held *pushv1.Ack

	mu    sync.Mutex
	asked map[string]time.Time // when an issuer's keys were asked for
}

// NewClient returns a Client that is not connected.
func NewClient(o Options) *Client {
	return &Client{o: o, refresh: make(chan *pushv1.KeyRefresh, refreshQueue), held: &pushv1.Ack{}, asked: map[string]time.Time{}}
}

// Refresh asks for an issuer's keys. It never waits, and asks once in a while: callers name unknown keys as they like.
func (c *Client) Refresh(policy, issuer, keyID string) {
	if !c.mayAsk(policy + " " + issuer) {
		return
	}
	select {
	case c.refresh <- &pushv1.KeyRefresh{Policy: policy, Issuer: issuer, KeyId: keyID}:
	default:
	}
}

func (c *Client) mayAsk(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.o.Clock.Now()
	if last, found := c.asked[what]; found && now.Sub(last) < refreshEvery {
		return false
	}
	c.asked[what] = now
	return true
}

// Restore puts the last Update in force that was kept; false if there is none.
func (c *Client) Restore() bool {
	u, err := c.readState()
	if err != nil {
		c.o.Log.Warn("rules from before the restart can't be read", "error", err)
	}
	if u == nil {
		return false
	}
	return c.apply(u).GetError() == ""
}

// Run connects until the context ends. It waits longer after each failure, with jitter, so that many sidecars don't
// come back at once.
func (c *Client) Run(ctx context.Context) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		connected, err := c.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if connected {
			backoff = firstBackoff
		}
		c.o.Log.Warn("operator can't be reached, the rules in force stay", "address", c.o.Address, "error", err, "retry", backoff)
		timer := c.o.Clock.NewTimer(backoff/2 + rand.N(backoff/2+1)) //nolint:gosec // spreads sidecars, guards nothing
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
		}
		backoff = min(backoff*2, lastBackoff)
	}
}

// session is one stream, from its start to its end; connected tells whether the operator answered.
func (c *Client) session(ctx context.Context) (connected bool, err error) {
	secure, token, err := c.credentials()
	if err != nil {
		return false, err
	}
	conn, err := grpc.NewClient(c.o.Address, grpc.WithTransportCredentials(secure),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}))
	if err != nil {
		return false, fmt.Errorf("dial: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token))
	defer cancel()
	stream, err := pushv1.NewPushServiceClient(conn).Stream(ctx)
	if err != nil {
		return false, fmt.Errorf("open stream: %w", err)
	}
	hello := &pushv1.Hello{SidecarVersion: c.o.Version, ContentVersion: c.held.GetContentVersion(), Results: c.held.GetResults()}
	if err := stream.Send(&pushv1.StreamRequest{Message: &pushv1.StreamRequest_Hello{Hello: hello}}); err != nil {
		return false, fmt.Errorf("send hello: %w", err)
	}
	acks := make(chan *pushv1.Ack)
	go func() {
		defer cancel() // or receiving would wait for ever to hand over what can't be sent
		c.send(ctx, stream, acks)
	}()
	return c.receive(ctx, stream, acks)
}

func (c *Client) receive(ctx context.Context, stream grpc.BidiStreamingClient[pushv1.StreamRequest, pushv1.StreamResponse], acks chan<- *pushv1.Ack) (bool, error) {
	connected := false
	for {
		message, err := stream.Recv()
		if err != nil {
			return connected, fmt.Errorf("receive: %w", err)
		}
		connected = true
		if drain := message.GetDrain(); drain != nil {
			return true, c.drain(ctx, drain)
		}
		if u := message.GetUpdate(); u != nil {
			ack := c.apply(u)
			select {
			case acks <- ack:
			case <-ctx.Done():
				return true, ctx.Err()
			}
			c.keep(u, ack)
		}
	}
}

var errDrained = errors.New("the operator is going away")

func (c *Client) drain(ctx context.Context, d *pushv1.Drain) error {
	timer := c.o.Clock.NewTimer(d.GetReconnectAfter().AsDuration())
	defer timer.Stop()
	select {
	case <-timer.C():
		return errDrained
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keep writes what is in force to where a restarted sidecar finds it.
func (c *Client) keep(u *pushv1.Update, ack *pushv1.Ack) {
	if ack.GetError() != "" {
		return
	}
	if err := c.writeState(u); err != nil {
		c.o.Log.Error("rules can't be kept over a restart", "error", err)
	}
}

// apply puts an Update in force and returns what is to be acknowledged. One that can't be read leaves what is held.
func (c *Client) apply(u *pushv1.Update) *pushv1.Ack {
	ack := &pushv1.Ack{ContentVersion: u.GetContentVersion()}
	results, err := c.o.Load(u)
	ack.Results = results
	if err != nil {
		ack.Error = err.Error()
		return ack
	}
	c.held = ack
	return ack
}

// send is the only sender after hello.
func (c *Client) send(ctx context.Context, stream grpc.BidiStreamingClient[pushv1.StreamRequest, pushv1.StreamResponse], acks <-chan *pushv1.Ack) {
	for {
		message := &pushv1.StreamRequest{}
		select {
		case ack := <-acks:
			message.Message = &pushv1.StreamRequest_Ack{Ack: ack}
		case r := <-c.refresh:
			message.Message = &pushv1.StreamRequest_KeyRefresh{KeyRefresh: r}
		case <-ctx.Done():
			return
		}
		if err := stream.Send(message); err != nil {
			return // the receiving side learns why
		}
	}
}

func (c *Client) credentials() (credentials.TransportCredentials, string, error) {
	pem, err := os.ReadFile(c.o.CAFile)
	if err != nil {
		return nil, "", fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, "", fmt.Errorf("read CA: %s holds no certificate", c.o.CAFile)
	}
	token, err := os.ReadFile(c.o.TokenFile)
	if err != nil {
		return nil, "", fmt.Errorf("read token: %w", err)
	}
	host, _, err := net.SplitHostPort(c.o.Address)
	if err != nil {
		return nil, "", fmt.Errorf("operator's address: %w", err)
	}
	secure := credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: host, MinVersion: tls.VersionTLS13})
	return secure, strings.TrimSpace(string(token)), nil
}
