package testredis

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
)

// Proxy passes bytes on to a server, late.
type Proxy struct {
	// Addr is where it listens.
	Addr string

	target string
	delay  atomic.Int64
	ends   sync.WaitGroup
	mu     sync.Mutex
	open   []net.Conn
}

// Slow runs a proxy that is in no hurry until it is told to be slow; it ends with the test.
func Slow(tb testing.TB, target string) *Proxy {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target}
	p.ends.Go(func() { p.serve(l) })
	tb.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.ends.Wait()
	})
	return p
}

// Delay is how late what callers send arrives from now on.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

func (p *Proxy) serve(l net.Listener) {
	for {
		caller, err := l.Accept()
		if err != nil {
			return
		}
		var d net.Dialer
		server, err := d.DialContext(context.Background(), "tcp", p.target)
		if err != nil {
			_ = caller.Close()
			continue
		}
		p.mu.Lock()
		p.open = append(p.open, caller, server)
		p.mu.Unlock()
		p.ends.Go(func() { p.pass(server, caller, true) })
		p.ends.Go(func() { p.pass(caller, server, false) })
	}
}

func (p *Proxy) pass(to, from net.Conn, late bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if late {
			<-clock.Real().NewTimer(time.Duration(p.delay.Load())).C()
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
