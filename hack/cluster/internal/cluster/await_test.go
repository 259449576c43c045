package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// eagerClock does not wait; it ends the wait for good after a number of rounds.
type eagerClock struct{ rounds int }

func (*eagerClock) Now() time.Time { return time.Unix(0, 0) }

func (c *eagerClock) Sleep(ctx context.Context, _ time.Duration) error {
	c.rounds--
	if c.rounds < 0 {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

func TestAwaitTriesUntilItWorks(t *testing.T) {
	c := &Cluster{Tools: Tools{Clock: &eagerClock{rounds: 10}}}
	tries := 0
	err := c.await(context.Background(), "not there", "log", time.Hour, func(context.Context) error {
		tries++
		if tries < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("%d tries, error %v", tries, err)
	}
}

func TestAwaitEndsWithTheLastReason(t *testing.T) {
	c := &Cluster{Tools: Tools{Clock: &eagerClock{rounds: 2}}}
	err := c.await(context.Background(), "no answer", "/x/log", time.Minute, func(context.Context) error {
		return errors.New("connection refused")
	})
	var failure *FailureError
	if !errors.As(err, &failure) || failure.Log != "/x/log" || failure.Error() != "no answer after 1m00s: connection refused" {
		t.Errorf("got %v", err)
	}
}

func TestAwaitGivesUpWhenSomethingBreaks(t *testing.T) {
	ctx, broken := context.WithCancelCause(context.Background())
	c := &Cluster{Tools: Tools{Clock: &eagerClock{rounds: 10}}, broken: broken}
	err := c.await(ctx, "no answer", "/x/log", time.Hour, func(context.Context) error {
		broken(errors.New("etcd did not stay up"))
		return errors.New("connection refused")
	})
	if err == nil || err.Error() != "etcd did not stay up" {
		t.Errorf("got %v", err)
	}
}

func TestTogetherReturnsTheFirstErrorAfterAllHaveEnded(t *testing.T) {
	wrong := errors.New("wrong")
	ended := false
	err := together(context.Background(),
		func(context.Context) error { return wrong },
		func(ctx context.Context) error {
			<-ctx.Done()
			ended = true
			return ctx.Err()
		},
	)
	if !errors.Is(err, wrong) || !ended {
		t.Errorf("got %v, the other task ended: %t", err, ended)
	}
}

func TestUnreadyNodesHaveAReason(t *testing.T) {
	for answer, want := range map[string]string{
		`{}`: "0 of 1 nodes have joined",
		`{"items":[{"metadata":{"name":"a"},"status":{"conditions":[{"type":"Ready","status":"False","message":"no network"}]}}]}`: "node a is not ready: no network",
		`{"items":[{"metadata":{"name":"a"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}]}`:                         "",
	} {
		var nodes nodeList
		if err := json.Unmarshal([]byte(answer), &nodes); err != nil {
			t.Fatal(err)
		}
		err := nodes.unready(1)
		if got := message(err); got != want {
			t.Errorf("%s: got %q, want %q", answer, got, want)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestFoldersThatAreNoClustersStay(t *testing.T) {
	p := Plan{Name: "dev", Dir: t.TempDir(), Nodes: 1}
	if err := p.vacate(); err != nil {
		t.Errorf("an empty folder: %v", err)
	}
	if err := renderTo(p.file("precious"), "kubeconfig.yaml", map[string]string{
		"Cluster": "", "Server": "", "User": "", "Authority": "", "Certificate": "", "Key": "",
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.vacate(); err == nil || !strings.Contains(err.Error(), "stays as it is") {
		t.Errorf("a folder with other things: %v", err)
	}
}
