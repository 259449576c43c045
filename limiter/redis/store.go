package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-dev/sluice/internal/clock"
	"github.com/sluice-dev/sluice/limiter"
)

// Topology is how the servers hang together.
type Topology uint8

// The topologies.
const (
	Standalone Topology = iota + 1
	Sentinel
	Cluster
)

// Options say how to reach the servers.
type Options struct {
	Topology   Topology
	Addresses  []string // host:port of the server, the sentinels, or some servers of the cluster
	MasterName string   // Sentinel only
	Username   string
	Password   string
	TLS        *tls.Config   // nil = plain
	Timeout    time.Duration // of each call, waiting included; 0 = 50ms
	PoolSize   int           // connections a server; 0 = 8
	RoundTrip  func()        // hears of each batch that is sent; it may be nil
	Clock      clock.Clock   // ages refusals; nil is the machine's clock
}

const (
	defaultTimeout  = 50 * time.Millisecond
	defaultPoolSize = 8
	bufferSize      = 8 << 10
)

// Store is a limiter.Store in Redis.
type Store struct {
	client    redis.UniversalClient
	cluster   *redis.ClusterClient // nil = one server holds all keys
	script    script
	lease     script
	timeout   time.Duration
	roundTrip func()
	clock     clock.Clock
	refusals  *refusals

	mu    sync.Mutex
	lanes map[string]*lane // by server
}

// quiet keeps the client from writing log lines of its own: what fails is an error of the call that it fails.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

var silence = sync.OnceFunc(func() { redis.SetLogger(quiet{}) })

// Open returns a Store. It does not connect yet: a server that can't be reached is an error of Decide.
func Open(o Options) *Store {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.PoolSize <= 0 {
		o.PoolSize = defaultPoolSize
	}
	if o.RoundTrip == nil {
		o.RoundTrip = func() {}
	}
	if o.Clock == nil {
		o.Clock = clock.Real()
	}
	s := &Store{
		script: newScript(decideSource), lease: newScript(leaseSource), timeout: o.Timeout, roundTrip: o.RoundTrip, clock: o.Clock, lanes: map[string]*lane{},
	}
	s.refusals = newRefusals(o.Clock, s.countAttempts)
	silence()
	s.client = redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: o.Addresses, MasterName: o.MasterName, IsClusterMode: o.Topology == Cluster,
		Username: o.Username, Password: o.Password, TLSConfig: o.TLS,
		DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
		ContextTimeoutEnabled: true, DialerRetries: 1,
		MaxRetries: -1, MaxRedirects: 3, // of calls that were not executed: see evalsha
		PoolSize: o.PoolSize, ReadBufferSize: bufferSize, WriteBufferSize: bufferSize,
		DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		OnConnect: func(context.Context, *redis.Conn) error {
			s.refusals.forget()
			return nil
		},
	})
	s.cluster, _ = s.client.(*redis.ClusterClient)
	return s
}

// Decide implements limiter.Store. Whoever asks while a batch is on its way shares the next round trip, and callers that
// ask the same share one call. In a Cluster, where checks lie on several servers, each is decided by itself; if one
// refuses, the others' charges are given back.
func (s *Store) Decide(ctx context.Context, checks []limiter.Check) ([]limiter.Result, error) {
	if len(checks) == 0 {
		return nil, nil
	}
	if results, refused := s.refusals.find(checks); refused {
		return results, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if s.cluster != nil && len(checks) > 1 {
		return s.decideApart(ctx, checks)
	}
	t, err := s.ask(ctx, checks)
	if err != nil {
		return nil, err
	}
	results, err := t.await(ctx)
	if err == nil {
		s.refusals.put(checks, results, t.call)
	}
	return results, err
}

// Forget makes the store ask the server again for what it has refused.
func (s *Store) Forget() { s.refusals.forget() }

// countAttempts has refused attempts counted, without waiting.
func (s *Store) countAttempts(checks []limiter.Check, attempts int) {
	for attempts > 0 {
		n := min(attempts, maxCallers)
		s.post(&call{checks: checks, attempts: n})
		attempts -= n
	}
}

// post sends a call that nobody waits for. If it fails nothing is lost but what it says.
func (s *Store) post(c *call) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	if l, err := s.lane(ctx, &c.checks[0]); err == nil {
		_ = l.post(c) // see above
	}
}

// GiveBack implements limiter.Returner. It does not wait; what fails is not given back.
func (s *Store) GiveBack(checks []limiter.Check, results []limiter.Result) {
	for i := range checks {
		s.post(&call{checks: checks[i : i+1], back: []int64{limiter.Receipt(&checks[i], &results[i])}})
	}
}

// ticket is a caller's part in a call.
type ticket struct {
	lane   *lane
	call   *call
	number int
}

func (s *Store) ask(ctx context.Context, checks []limiter.Check) (ticket, error) {
	l, err := s.lane(ctx, &checks[0])
	if err != nil {
		return ticket{}, err
	}
	c, number, err := l.join(checks)
	return ticket{l, c, number}, err
}

// await returns the caller's own results. A caller that leaves is not counted. One for which it takes too long is, if the
// call was sent: it is decided by onStoreFailure.
func (t ticket) await(ctx context.Context) ([]limiter.Result, error) {
	select {
	case <-t.call.done:
		if t.call.err != nil {
			return nil, t.call.err
		}
		return decode(t.call.checks, t.call.reply, t.call.place(t.number))
	case <-ctx.Done():
		t.lane.leave(t.call, t.number, errors.Is(ctx.Err(), context.DeadlineExceeded))
		return nil, fmt.Errorf("ask the store: %w", context.Cause(ctx))
	}
}

// undo gives back what was charged to a caller that left.
func (s *Store) undo(c *call, place int) {
	if c.err != nil {
		return
	}
	if results, err := decode(c.checks, c.reply, place); err == nil {
		limiter.GiveBack(s, c.checks, results, true)
	}
}

func (s *Store) decideApart(ctx context.Context, checks []limiter.Check) ([]limiter.Result, error) {
	tickets := make([]ticket, 0, len(checks))
	var failed error
	for i := range checks {
		t, err := s.ask(ctx, checks[i:i+1])
		if err != nil {
			failed = err
			break
		}
		tickets = append(tickets, t)
	}
	results := make([]limiter.Result, len(checks))
	refused := false
	for i, t := range tickets {
		own, err := t.await(ctx)
		if err != nil {
			failed = err
			continue
		}
		results[i] = own[0]
		refused = refused || (!own[0].Allowed && !checks[i].Rule.Shadow)
	}
	if failed != nil {
		limiter.GiveBack(s, checks, results, true)
		return nil, failed
	}
	if refused {
		limiter.GiveBack(s, checks, results, false)
		s.refusals.put(checks, results, tickets[0].call)
	}
	return results, nil
}

// lane is where calls wait for the server that holds the counters of a check.
func (s *Store) lane(ctx context.Context, c *limiter.Check) (*lane, error) {
	var server string
	if s.cluster != nil {
		node, err := s.cluster.MasterForKey(ctx, string(c.CounterKey(nil, 0)))
		if err != nil {
			return nil, fmt.Errorf("find the server: %w", err)
		}
		server = node.Options().Addr
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lanes == nil {
		return nil, ErrClosed
	}
	l := s.lanes[server]
	if l == nil {
		l = newLane(s.send, s.undo)
		s.lanes[server] = l
	}
	return l, nil
}

// evalsha is a call that is never sent twice after it might have been executed, since it would count twice; where a
// server says that it did not execute it (MOVED, ASK), the client sends it to the right one.
type evalsha struct{ *redis.Cmd }

func (evalsha) NoRetry() bool { return true }

// send makes one round trip, and another for those calls that found no script on the server.
func (s *Store) send(batch []*call) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	sent, connection := s.clock.Now(), s.refusals.connection()
	for _, c := range batch {
		c.sentAt, c.connection = sent, connection
	}
	s.exec(ctx, batch, false)
	var missing []*call
	for _, c := range batch {
		if c.err != nil && !isReply(c.err) {
			s.refusals.forget()
		}
		if c.err != nil && redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		s.exec(ctx, missing, true)
	}
}

func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// exec runs the calls in one pipeline; whole sends the script itself with each.
func (s *Store) exec(ctx context.Context, calls []*call, whole bool) {
	s.roundTrip()
	pipe := s.client.Pipeline()
	commands := make([]evalsha, len(calls))
	for i, c := range calls {
		commands[i] = evalsha{redis.NewCmd(ctx, s.words(c, whole)...)}
		_ = pipe.Process(ctx, commands[i]) // it only queues
	}
	_, failed := pipe.Exec(ctx)
	for i, c := range calls {
		if c.reply, c.err = commands[i].Text(); commands[i].Val() == nil && commands[i].Err() == nil {
			c.err = failed // before any was sent
		}
		if c.err != nil {
			c.err = fmt.Errorf("ask the store: %w", c.err)
		}
	}
}

// words are what a call sends; whole sends the script itself.
func (s *Store) words(c *call, whole bool) []any {
	if c.claim != nil {
		return s.lease.claim(c.claim, whole)
	}
	return s.script.command(c, whole)
}

// Ping tells whether the server answers and accepts the credentials.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("ping the store: %w", err)
	}
	return nil
}

// Close lets the calls under way end, and closes the connections.
func (s *Store) Close() error {
	s.refusals.close()
	s.mu.Lock()
	lanes := s.lanes
	s.lanes = nil
	s.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
	if err := s.client.Close(); err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}
