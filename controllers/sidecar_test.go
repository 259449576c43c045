package controllers_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/internal/compile"
	"github.com/sluice-dev/sluice/internal/push"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// sidecar is a real gRPC client that answers when the test says so.
type sidecar struct {
	t       *testing.T
	stream  grpc.BidiStreamingClient[pushv1.StreamRequest, pushv1.StreamResponse]
	updates chan *pushv1.Update
	ended   chan error
}

// open opens a stream with a token and says hello.
func open(t *testing.T, token string) *sidecar {
	t.Helper()
	conn, err := grpc.NewClient(pushAt, grpc.WithTransportCredentials(credentials.NewTLS(pushTLS)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+token)
	stream, err := pushv1.NewPushServiceClient(conn).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := &sidecar{t: t, stream: stream, updates: make(chan *pushv1.Update, 100), ended: make(chan error, 1)}
	s.say(&pushv1.StreamRequest{Message: &pushv1.StreamRequest_Hello{Hello: &pushv1.Hello{}}})
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				s.ended <- err
				return
			}
			if u := m.GetUpdate(); u != nil {
				s.updates <- u
			}
		}
	}()
	return s
}

// connect opens the pod's stream, again and again until the operator knows the pod.
func connect(t *testing.T, pod *corev1.Pod) *sidecar {
	t.Helper()
	proof := token(t, pod.Namespace, pod, push.Audience)
	var s *sidecar
	eventually(t, "a first update for "+pod.Name, func() (bool, string) {
		s = open(t, proof)
		select {
		case u := <-s.updates:
			s.updates <- u
			return true, ""
		case err := <-s.ended:
			return false, err.Error()
		}
	})
	return s
}

func (s *sidecar) say(m *pushv1.StreamRequest) {
	s.t.Helper()
	if err := s.stream.Send(m); err != nil {
		s.t.Logf("send: %v", err) // the receiving side learns why
	}
}

// await takes updates until one is as the test wants it.
func (s *sidecar) await(what string, wanted func(*pushv1.RuleSet, *pushv1.Secrets) bool) *pushv1.Update {
	s.t.Helper()
	for {
		select {
		case u := <-s.updates:
			if rules, secrets := read(s.t, u); wanted(rules, secrets) {
				return u
			}
		case err := <-s.ended:
			s.t.Fatalf("want %s; the stream ended: %v", what, err)
		case <-s.t.Context().Done():
			s.t.Fatalf("want %s", what)
		}
	}
}

// awaitPolicies takes updates until one has just these policies.
func (s *sidecar) awaitPolicies(names ...string) *pushv1.Update {
	s.t.Helper()
	return s.await("the policies", func(rules *pushv1.RuleSet, _ *pushv1.Secrets) bool {
		if len(rules.GetPolicies()) != len(names) {
			return false
		}
		for i, p := range rules.GetPolicies() {
			if compile.PolicyName(p) != names[i] {
				return false
			}
		}
		return true
	})
}

// serve acknowledges every update from now on.
func (s *sidecar) serve() {
	go func() {
		for {
			select {
			case u := <-s.updates:
				s.ack(u, "")
			case <-s.t.Context().Done():
				return
			}
		}
	}()
}

// ack answers an update; with a problem, it refuses every policy of it.
func (s *sidecar) ack(u *pushv1.Update, problem string) {
	s.t.Helper()
	rules, _ := read(s.t, u)
	ack := &pushv1.Ack{ContentVersion: u.GetContentVersion()}
	for _, p := range rules.GetPolicies() {
		ack.Results = append(ack.Results, &pushv1.PolicyResult{Policy: compile.PolicyName(p), Version: p.GetVersion(), Error: problem})
	}
	s.say(&pushv1.StreamRequest{Message: &pushv1.StreamRequest_Ack{Ack: ack}})
}

// wantEnd waits for the stream's end.
func (s *sidecar) wantEnd(code codes.Code) {
	s.t.Helper()
	for {
		select {
		case <-s.updates:
		case err := <-s.ended:
			if status.Code(err) != code {
				s.t.Errorf("want %s, got %v", code, err)
			}
			return
		}
	}
}

func read(t *testing.T, u *pushv1.Update) (*pushv1.RuleSet, *pushv1.Secrets) {
	t.Helper()
	var rules pushv1.RuleSet
	var secrets pushv1.Secrets
	if err := proto.Unmarshal(u.GetRuleSet(), &rules); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(u.GetSecrets(), &secrets); err != nil {
		t.Fatal(err)
	}
	return &rules, &secrets
}
