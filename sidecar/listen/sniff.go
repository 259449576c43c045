// Package listen accepts connections for the sidecar: it finds out where redirected connections wanted to go, and
// lets those that do not speak HTTP pass through untouched.
package listen

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// sniffFor is how long a connection may take to say what it speaks.
	sniffFor = 10 * time.Second
	// silence is how long a caller may say nothing before the application is asked whether it speaks first.
	silence     = 200 * time.Millisecond
	dialTimeout = 5 * time.Second
)

// Opaque hears of each connection that passed through because it is not HTTP.
type Opaque func()

// Conn is a connection whose first bytes were read, and that knows where it wanted to go.
type Conn struct {
	net.Conn
	head []byte // read already, and not taken yet
	// Target is host:port of the application.
	Target string
}

func (c *Conn) Read(p []byte) (int, error) {
	if len(c.head) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.head)
	if c.head = c.head[n:]; len(c.head) == 0 {
		c.head = nil
	}
	return n, nil
}

// CloseWrite lets the other end read what was sent before it learns that this one is closed.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Target tells where a connection wants to go.
type Target func(net.Conn) (string, error)

// Sniffer is a net.Listener that yields the connections that look like HTTP.
type Sniffer struct {
	inner  net.Listener
	target Target
	opaque Opaque
	log    *slog.Logger
	ready  chan net.Conn
	closed chan struct{}
	once   sync.Once
	err    error
}

// Sniff starts to accept. A connection on which nobody says anything is closed after a while. When the context ends,
// no new tunnel is dialled; those that run go on.
func Sniff(ctx context.Context, inner net.Listener, target Target, opaque Opaque, log *slog.Logger) *Sniffer {
	s := &Sniffer{
		inner: inner, target: target, opaque: opaque, log: log,
		ready: make(chan net.Conn), closed: make(chan struct{}),
	}
	go s.run(ctx)
	return s
}

// Accept implements net.Listener.
func (s *Sniffer) Accept() (net.Conn, error) {
	select {
	case c := <-s.ready:
		return c, nil
	case <-s.closed:
		return nil, s.err
	}
}

// Addr implements net.Listener.
func (s *Sniffer) Addr() net.Addr { return s.inner.Addr() }

// Close implements net.Listener.
func (s *Sniffer) Close() error {
	s.stop(net.ErrClosed)
	return s.inner.Close()
}

func (s *Sniffer) stop(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.closed)
	})
}

func (s *Sniffer) run(ctx context.Context) {
	for {
		conn, err := s.inner.Accept()
		if err != nil {
			s.stop(err)
			return
		}
		go s.sort(ctx, conn)
	}
}

// sort gives a connection to the HTTP server or passes it through.
func (s *Sniffer) sort(ctx context.Context, conn net.Conn) {
	target, err := s.target(conn)
	if err != nil {
		s.log.Warn("connection without a target", "error", err)
		s.close(conn)
		return
	}
	c := &Conn{Conn: conn, Target: target}
	spoken, upstream, err := s.listen(ctx, c)
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	switch {
	case err != nil:
		s.log.Debug("connection says nothing", "error", err)
		s.close(conn)
	case spoken == isHTTP:
		select {
		case s.ready <- c:
		case <-s.closed:
			s.close(conn)
		}
	default:
		s.opaque()
		s.tunnel(ctx, c, upstream)
	}
}

// listen finds out what a connection speaks. A caller that waits for the application to speak first speaks no HTTP; the
// application's connection, with what it said, is returned. A caller that is merely slow is still sorted by what it says: else
// waiting would lead past the limiter.
func (s *Sniffer) listen(ctx context.Context, c *Conn) (spoken protocol, upstream net.Conn, err error) {
	started := time.Now() //nolint:forbidigo // deadlines are of the kernel's clock
	if err := c.SetReadDeadline(started.Add(silence)); err != nil {
		return undecided, nil, err
	}
	spoken, err = c.sniff()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return spoken, nil, err
	}
	if err := c.SetReadDeadline(started.Add(sniffFor)); err != nil {
		return undecided, nil, err
	}
	if len(c.head) > 0 {
		spoken, err = c.sniff()
		return spoken, nil, err
	}
	return s.whoSpeaksFirst(ctx, c)
}

func (s *Sniffer) whoSpeaksFirst(ctx context.Context, c *Conn) (protocol, net.Conn, error) {
	upstream, err := dial(ctx, c.Target)
	if err != nil {
		spoken, err := c.sniff()
		return spoken, nil, err
	}
	application := &Conn{Conn: upstream}
	first := make(chan bool, 1)
	go func() {
		said := application.more() == nil
		if said {
			_ = c.SetReadDeadline(time.Unix(1, 0)) // wakes the other side; if that fails, it wakes later
		}
		first <- said
	}()
	spoken, err := c.sniff()
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) { // the caller spoke, or left
		s.close(upstream)
		<-first
		return spoken, nil, err
	}
	_ = upstream.SetReadDeadline(time.Unix(1, 0))
	if !<-first {
		s.close(upstream)
		return undecided, nil, err
	}
	return isOpaque, application, upstream.SetReadDeadline(time.Time{})
}

func dial(ctx context.Context, target string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	return d.DialContext(ctx, "tcp", target)
}

func (s *Sniffer) close(c net.Conn) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		s.log.Debug("close connection", "error", err)
	}
}

// tunnel passes bytes both ways until both sides have ended.
func (s *Sniffer) tunnel(ctx context.Context, c *Conn, upstream net.Conn) {
	defer s.close(c.Conn)
	if upstream == nil {
		var err error
		if upstream, err = dial(ctx, c.Target); err != nil {
			s.log.Warn("application can't be reached", "target", c.Target, "error", err)
			return
		}
	}
	defer s.close(upstream)
	var both sync.WaitGroup
	both.Go(func() { s.copy(upstream, c) })
	both.Go(func() { s.copy(c, upstream) })
	both.Wait()
}

func (s *Sniffer) copy(to net.Conn, from io.Reader) {
	if _, err := io.Copy(to, from); err != nil {
		s.log.Debug("tunnel ended", "error", err)
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		if err := half.CloseWrite(); err != nil {
			s.log.Debug("tunnel ended", "error", err)
		}
	}
}
