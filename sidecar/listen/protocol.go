package listen

import (
	"bytes"

	"golang.org/x/net/http/httpguts"
)

// protocol is what a connection's first bytes speak.
type protocol uint8

const (
	undecided protocol = iota
	isHTTP
	isOpaque
)

const (
	// headSize is how much is read before it is decided; a request line that is longer is HTTP's.
	headSize = 4 << 10
	blanks   = " \t\v\f\r"
)

// sniff reads until it is clear what the caller speaks.
func (c *Conn) sniff() (protocol, error) {
	for {
		if p := classify(c.head); p != undecided {
			return p, nil
		}
		if err := c.more(); err != nil {
			return undecided, err
		}
	}
}

func (c *Conn) more() error {
	if c.head == nil {
		c.head = make([]byte, 0, headSize)
	}
	n, err := c.Conn.Read(c.head[len(c.head):cap(c.head)])
	c.head = c.head[:len(c.head)+n]
	if n > 0 {
		return nil
	}
	return err
}

// classify calls HTTP whatever a lenient server might take for a request, since what is opaque passes unlimited: empty lines
// before it, methods in lower case, tabs for spaces, and HTTP/0.9. The HTTP server refuses what is not well-formed.
func classify(head []byte) protocol {
	line, _, whole := bytes.Cut(bytes.TrimLeft(head, "\r\n"), []byte("\n"))
	method := line
	if end := bytes.IndexAny(line, blanks); end >= 0 {
		method = line[:end]
	}
	switch {
	case len(line) == 0 && len(head) < headSize:
		return undecided
	case len(method) > 0 && !httpguts.ValidHeaderFieldName(string(method)): // the characters of both are a token's
		return isOpaque
	case !whole && len(head) < headSize:
		return undecided
	case !whole, bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")), string(method) == "GET":
		return isHTTP
	default:
		return isOpaque
	}
}
