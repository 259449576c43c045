// Package listen accepts connections for the sidecar: it finds out where redirected connections wanted to go, and
// lets those that do not speak HTTP pass through untouched.
package listen

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	sniffFor    = 10 * time.Second
	dialTimeout = 5 * time.Second
	maxPending  = 4096
)

// Opaque hears of each connection that passed through because it is not HTTP.
type Opaque func()

// Conn is a connection whose first byte was read, and that knows where it wanted to go.
type Conn struct {
	net.Conn
	reader *bufio.Reader
	// Target is host:port of the application.
	Target string
}

func (c *Conn) Read(p []byte) (int, error) { return c.reader.Read(p) }

// Target tells where a connection wants to go.
type Target func(net.Conn) (string, error)

// Sniffer is a net.Listener that yields the connections that look like HTTP.
type Sniffer struct {
	inner  net.Listener
	target Target
	opaque Opaque
	log    *slog.Logger
	ready  chan net.Conn
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
	err    error
}

// Sniff starts to accept. A connection that sends nothing is given to neither side and closed after a while. When the context ends,
// no new tunnel is dialled; those that run go on.
func Sniff(ctx context.Context, inner net.Listener, target Target, opaque Opaque, log *slog.Logger) *Sniffer {
	s := &Sniffer{
		inner: inner, target: target, opaque: opaque, log: log,
		ready: make(chan net.Conn), slots: make(chan struct{}, maxPending), closed: make(chan struct{}),
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
		s.slots <- struct{}{}
		go func() {
			defer func() { <-s.slots }()
			s.sort(ctx, conn)
		}()
	}
}

// sort looks at the first byte: a request line starts with a letter, and so does HTTP/2's preface.
func (s *Sniffer) sort(ctx context.Context, conn net.Conn) {
	target, err := s.target(conn)
	if err != nil {
		s.log.Warn("connection without a target", "error", err)
		s.close(conn)
		return
	}
	c := &Conn{Conn: conn, reader: bufio.NewReader(conn), Target: target}
	if err := conn.SetReadDeadline(time.Now().Add(sniffFor)); err != nil { //nolint:forbidigo // a deadline of the kernel's clock
		s.close(conn)
		return
	}
	first, err := c.reader.Peek(1)
	if err != nil {
		s.close(conn)
		return
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		s.close(conn)
		return
	}
	if first[0] >= 'A' && first[0] <= 'Z' {
		select {
		case s.ready <- c:
		case <-s.closed:
			s.close(conn)
		}
		return
	}
	s.opaque()
	s.tunnel(ctx, c)
}

func (s *Sniffer) close(c net.Conn) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		s.log.Debug("close connection", "error", err)
	}
}

// tunnel passes bytes both ways until both sides have ended.
func (s *Sniffer) tunnel(ctx context.Context, c *Conn) {
	defer s.close(c.Conn)
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	upstream, err := d.DialContext(ctx, "tcp", c.Target)
	if err != nil {
		s.log.Warn("application can't be reached", "target", c.Target, "error", err)
		return
	}
	defer s.close(upstream)
	var both sync.WaitGroup
	both.Go(func() { s.copy(upstream, c) })
	both.Go(func() { s.copy(c.Conn, upstream) })
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
