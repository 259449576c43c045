package listen

import (
	"log/slog"
	"net/http"
	"time"
)

// Limits against callers that hold connections without using them, and against floods of headers.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	maxStreams    = 250
	pingAfter     = 30 * time.Second
	pingTimeout   = 15 * time.Second
)

// NewServer returns a server of HTTP/1.1 and, where asked for, of HTTP/2 without TLS.
func NewServer(h http.Handler, http2 bool, log *slog.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(http2)
	return &http.Server{
		Handler: h, Protocols: &protocols,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
