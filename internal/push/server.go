// Package push is the operator's end of the push streams: it knows for each pod what it should enforce, sends it to the
// sidecar that proves to be that pod, and remembers what was acknowledged. It may know compile's messages and the
// Kubernetes API of tokens; what a pod should enforce is decided elsewhere.
package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/internal/clock"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// Pod is who a token was bound to.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

// Authenticator tells which pod a token is bound to, and until when it is valid.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (Pod, time.Time, error)
}

// State is what is known of a pod's sidecar.
type State struct {
	Connected bool
	// Ack is the last acknowledgement; nil if there is none.
	Ack    *pushv1.Ack
	Opaque uint64
}

// Options of a Server.
type Options struct {
	Authenticator Authenticator
	Clock         clock.Clock
	// Changed hears that the state of a sidecar in a namespace changed. It must not block.
	Changed func(namespace string)
	// Refresh hears that a sidecar misses a key. It must not block.
	Refresh func(Pod, *pushv1.KeyRefresh)
	Metrics *Metrics
	// PeerAddress, where set, returns the pod's address, which the peer's must equal.
	PeerAddress func(context.Context, Pod) string
}

// Server implements the push service.
type Server struct {
	pushv1.UnimplementedPushServiceServer
	o        Options
	mu       sync.Mutex
	pods     map[types.UID]*target
	draining chan struct{}
	once     sync.Once
}

// target is one pod: what it should enforce, and its stream.
type target struct {
	pod    Pod
	wanted *pushv1.Update
	since  time.Time
	state  State
	stream *slot
}

// slot is one stream's place for the newest Update: who is slow gets the newest, and holds nobody back.
type slot struct {
	wake   chan struct{}
	cancel context.CancelCauseFunc
}

// Reasons for which a stream ends.
var (
	errReplaced = errors.New("the pod's sidecar connected anew")
	errGone     = errors.New("the pod is gone")
	errExpired  = errors.New("the token expired")
	errSlow     = errors.New("the sidecar does not read")
)

// NewServer returns a Server that knows no pods.
func NewServer(o Options) *Server {
	return &Server{o: o, pods: map[types.UID]*target{}, draining: make(chan struct{})}
}

// Want tells what a pod should enforce from now on. A pod that is not connected gets it when it connects.
func (s *Server) Want(pod Pod, u *pushv1.Update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.pods[pod.UID]
	if t == nil {
		t = &target{pod: pod}
		s.pods[pod.UID] = t
	}
	if t.wanted.GetContentVersion() == u.GetContentVersion() {
		return
	}
	t.wanted, t.since = u, s.o.Clock.Now()
	if t.stream != nil {
		t.stream.notify()
	}
}

// Retain forgets every pod of a namespace that is not among those given, and ends their streams.
func (s *Server) Retain(namespace string, uids map[types.UID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, t := range s.pods {
		if t.pod.Namespace != namespace || uids[uid] {
			continue
		}
		if t.stream != nil {
			t.stream.cancel(errGone)
		}
		delete(s.pods, uid)
	}
}

// State tells what is known of a pod's sidecar.
func (s *Server) State(uid types.UID) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.pods[uid]; t != nil {
		return t.state
	}
	return State{}
}

// Drain asks every sidecar to connect elsewhere, spread over a while.
func (s *Server) Drain() { s.once.Do(func() { close(s.draining) }) }

func (l *slot) notify() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Stream implements the push service. The token at its start decides which pod it speaks for.
func (s *Server) Stream(stream pushStream) error {
	pod, expires, err := s.authenticate(stream.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	l := &slot{wake: make(chan struct{}, 1), cancel: cancel}
	if !s.attach(pod, l) {
		return status.Error(codes.NotFound, "this pod is not known, or asks for no rules")
	}
	defer s.detach(pod, l)
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, pod, l) }()
	return s.send(ctx, stream, pod, l, expires, received)
}

func (s *Server) authenticate(ctx context.Context) (Pod, time.Time, error) {
	token, err := bearer(ctx)
	if err != nil {
		return Pod{}, time.Time{}, err
	}
	pod, expires, err := s.o.Authenticator.Authenticate(ctx, token)
	if err != nil {
		return Pod{}, time.Time{}, status.Error(codes.Unauthenticated, err.Error())
	}
	if s.o.PeerAddress == nil {
		return pod, expires, nil
	}
	if want, got := s.o.PeerAddress(ctx, pod), peerHost(ctx); want != "" && want != got {
		return Pod{}, time.Time{}, status.Errorf(codes.PermissionDenied, "the token is bound to a pod of another address than %s", got)
	}
	return pod, expires, nil
}

// attach waits for nothing: a pod that the operator does not know yet connects again later.
func (s *Server) attach(pod Pod, l *slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.pods[pod.UID]
	if t == nil || t.pod != pod {
		return false
	}
	if t.stream != nil {
		t.stream.cancel(errReplaced)
	} else {
		s.o.Metrics.connected.Inc()
	}
	t.stream = l
	t.state.Connected = true
	l.notify()
	s.o.Changed(pod.Namespace)
	return true
}

func (s *Server) detach(pod Pod, l *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.pods[pod.UID]
	if t != nil && t.stream != l {
		return // another stream took over
	}
	s.o.Metrics.connected.Dec()
	if t != nil {
		t.stream, t.state.Connected = nil, false
	}
	s.o.Changed(pod.Namespace)
}

type pushStream = grpc.BidiStreamingServer[pushv1.StreamRequest, pushv1.StreamResponse]

// send is the stream's only sender. What it returns ends the stream.
func (s *Server) send(ctx context.Context, stream pushStream, pod Pod, l *slot, expires time.Time, received <-chan error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := s.o.Clock.NewTimer(expires.Sub(s.o.Clock.Now()))
	defer timer.Stop()
	go func() {
		select {
		case <-timer.C():
			cancel(errExpired)
		case err := <-received:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	sent := ""
	draining := s.draining
	for {
		var message pushv1.StreamResponse
		select {
		case <-l.wake:
			u := s.wanted(pod.UID)
			if u == nil || u.GetContentVersion() == sent {
				continue
			}
			sent = u.GetContentVersion()
			message.Message = &pushv1.StreamResponse_Update{Update: u}
		case <-draining:
			draining = nil
			message.Message = &pushv1.StreamResponse_Drain{Drain: &pushv1.Drain{ReconnectAfter: durationpb.New(spread(pod.UID))}}
		case <-ctx.Done():
			return ended(context.Cause(ctx))
		}
		if err := s.sendWithin(ctx, stream, &message); err != nil {
			return err
		}
	}
}

// maxSend is how long a sidecar may take to read a message before it is cut off; it then connects anew.
const maxSend = 20 * time.Second

// sendWithin gives up on a peer that does not read: only the stream's end, on return, frees a blocked Send.
func (s *Server) sendWithin(ctx context.Context, stream pushStream, m *pushv1.StreamResponse) error {
	timer := s.o.Clock.NewTimer(maxSend)
	defer timer.Stop()
	done := make(chan error, 1)
	go func() { done <- stream.Send(m) }()
	select {
	case err := <-done:
		return err
	case <-timer.C():
		return ended(errSlow)
	case <-ctx.Done():
		return ended(context.Cause(ctx))
	}
}

// ended tells the sidecar why its stream ends.
func ended(why error) error {
	switch {
	case errors.Is(why, io.EOF):
		return nil
	case errors.Is(why, errExpired):
		return status.Error(codes.Unauthenticated, why.Error())
	case errors.Is(why, errGone), errors.Is(why, errReplaced), errors.Is(why, errSlow):
		return status.Error(codes.Aborted, why.Error())
	default:
		return why
	}
}

func (s *Server) wanted(uid types.UID) *pushv1.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.pods[uid]; t != nil {
		return t.wanted
	}
	return nil
}

func (s *Server) receive(stream pushStream, pod Pod, l *slot) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		switch m := message.GetMessage().(type) {
		case *pushv1.StreamRequest_Hello:
			held := &pushv1.Ack{ContentVersion: m.Hello.GetContentVersion(), Results: m.Hello.GetResults()}
			if held.GetContentVersion() != "" {
				s.acknowledge(pod, l, held)
			}
		case *pushv1.StreamRequest_Ack:
			s.acknowledge(pod, l, m.Ack)
		case *pushv1.StreamRequest_KeyRefresh:
			s.o.Refresh(pod, m.KeyRefresh)
		case *pushv1.StreamRequest_Report:
			s.report(pod, l, m.Report)
		}
	}
}

func (s *Server) acknowledge(pod Pod, l *slot, ack *pushv1.Ack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.pods[pod.UID]
	if t == nil || t.stream != l {
		return
	}
	t.state.Ack = ack
	if ack.GetContentVersion() == t.wanted.GetContentVersion() {
		s.o.Metrics.duration.Observe(s.o.Clock.Now().Sub(t.since).Seconds())
	}
	for _, r := range ack.GetResults() {
		if r.GetError() != "" {
			s.o.Metrics.rejected.Inc()
		}
	}
	s.o.Changed(pod.Namespace)
}

func (s *Server) report(pod Pod, l *slot, r *pushv1.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.pods[pod.UID]; t != nil && t.stream == l && t.state.Opaque != r.GetOpaqueConnections() {
		t.state.Opaque = r.GetOpaqueConnections()
		s.o.Changed(pod.Namespace)
	}
}

func bearer(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	const prefix = "Bearer "
	values := md.Get("authorization")
	if len(values) != 1 || len(values[0]) <= len(prefix) || values[0][:len(prefix)] != prefix {
		return "", status.Error(codes.Unauthenticated, "a bearer token is required")
	}
	return values[0][len(prefix):], nil
}

func peerHost(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return host(p.Addr.String())
}

// drainSpread is over how long sidecars reconnect when this server goes away.
const drainSpread = 5 * time.Second

// spread gives each pod its own moment, without a random source that a test could not know.
func spread(uid types.UID) time.Duration {
	var n uint32
	for _, b := range []byte(uid) {
		n = n*31 + uint32(b)
	}
	return time.Duration(n%1000) * drainSpread / 1000
}

// String names a pod as users know it.
func (p Pod) String() string { return fmt.Sprintf("%s/%s", p.Namespace, p.Name) }
