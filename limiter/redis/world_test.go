package redis_test

import (
	"container/heap"
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluice-dev/sluice/internal/testredis"
	"github.com/sluice-dev/sluice/limiter"
	"github.com/sluice-dev/sluice/limiter/internal/lease"
	"github.com/sluice-dev/sluice/limiter/redis"
)

// world is some processes that lease units of one counter from a real Redis, in virtual time. Everything happens at the
// time at which it is set to happen, in one goroutine.
type world struct {
	tb      testing.TB
	client  *goredis.Client
	store   *redis.Store
	now     int64 // µs since the epoch
	back    int64 // how far Redis' clock was set back
	events  events
	members []*member
	uses    []use
	calls   int
	joined  uint64
	fault   func() fault
	trip    func() int64 // µs to Redis, or back
}

// use is an admitted request, at the time at which it passes.
type use struct{ at, cost int64 }

// fault is what becomes of a claim besides being answered.
type fault uint8

const (
	none fault = iota
	lostClaim
	lostAnswer
	lateClaim // is done long after the member gave it up
)

const timeout = 50_000 // µs, after which a member gives a claim up

func newWorld(tb testing.TB) *world {
	tb.Helper()
	server := testredis.Start(tb)
	store := redis.Open(redis.Options{Topology: redis.Standalone, Addresses: []string{server.Addr}, Timeout: 10 * time.Second})
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	w := &world{tb: tb, client: server.Client(), store: store.WithTestLeases()}
	w.reset(epoch)
	return w
}

// reset starts over.
func (w *world) reset(now int64) {
	w.now, w.back, w.events, w.members, w.uses, w.calls = now, 0, events{}, nil, nil, 0
	w.fault = func() fault { return none }
	w.trip = func() int64 { return 300 }
	if err := w.client.FlushAll(context.Background()).Err(); err != nil {
		w.tb.Fatal(err)
	}
}

// member is one process.
type member struct {
	w      *world
	holder *lease.Holder
	skew   int64 // µs by which its clock is off
	drift  int64 // millionths by which its clock is slow
	queue  []int64
	dead   bool
	asleep int64 // until then it does nothing
	tended bool
	asked  func(limiter.Result) // hears what becomes of requests; it may be nil
}

func (w *world) join(r *limiter.Rule, skew, drift int64) {
	w.joined++
	m := &member{w: w, holder: lease.New(r, "k", w.joined), skew: skew, drift: drift}
	w.members = append(w.members, m)
}

// clock is what the member's clock shows.
func (m *member) clock() time.Time {
	passed := m.w.now - epoch
	return time.UnixMicro(m.w.now + m.skew - passed/1_000_000*m.drift - passed%1_000_000*m.drift/1_000_000)
}

// do runs something at the member at a time, or when it wakes.
func (m *member) do(at int64, what func()) {
	m.w.at(max(at, m.asleep), func() {
		switch {
		case m.dead:
		case m.asleep > m.w.now:
			m.do(m.asleep, what)
		default:
			what()
		}
	})
}

// request is a request that arrives at the member now.
func (m *member) request(cost int64) {
	m.decided(cost, m.holder.Take(m.clock(), cost))
	if m.holder.Due(m.clock()) {
		m.claim()
	}
	m.tend()
}

func (m *member) decided(cost int64, v lease.Verdict) {
	switch v {
	case lease.Granted:
		m.w.use(cost)
	case lease.Refused:
		m.tell(m.holder.Result(m.clock(), false, cost))
	case lease.Waits:
		m.queue = append(m.queue, cost)
		if !m.holder.Flying() {
			m.claim()
		}
	}
}

func (m *member) tell(r limiter.Result) {
	if m.asked != nil {
		m.asked(r)
	}
}

func (m *member) claim() {
	var asks []limiter.Ask
	for _, cost := range m.queue {
		if n := len(asks); n > 0 && asks[n-1].Cost == cost {
			asks[n-1].Callers++
		} else {
			asks = append(asks, limiter.Ask{Cost: cost, Callers: 1})
		}
	}
	m.queue = nil
	m.send(m.holder.Claim(m.clock(), asks))
}

func (m *member) send(c *limiter.Claim) {
	w, sent, fate := m.w, m.clock(), m.w.fault()
	w.calls++
	arrives := w.now + w.trip()
	switch fate {
	case lostClaim:
	case lateClaim:
		w.at(arrives+3*timeout, func() { w.execute(c) })
	default:
		w.at(arrives, func() {
			grant := w.execute(c)
			if back := w.trip(); fate == none && back+arrives-w.now < timeout {
				m.do(w.now+back, func() { m.settle(sent, c.Asks, grant) })
			} else {
				m.do(w.now+timeout, m.fail)
			}
		})
		return
	}
	m.do(w.now+timeout, m.fail)
}

// execute lets Redis do what a claim says. Callers that it admits pass now.
func (w *world) execute(c *limiter.Claim) limiter.Grant {
	ctx := context.Background()
	if err := w.client.Set(ctx, redis.TestTime, strconv.FormatInt(w.now-w.back, 10), 0).Err(); err != nil {
		w.tb.Fatal(err)
	}
	grant, err := w.store.Lease(c)
	if err != nil {
		w.tb.Fatal(err)
	}
	for i, n := range grant.Served {
		for range n {
			w.use(c.Asks[i].Cost)
		}
	}
	return grant
}

func (m *member) settle(sent time.Time, asks []limiter.Ask, g limiter.Grant) {
	m.holder.Settle(sent, m.clock(), g)
	for i, n := range g.Served {
		if n < asks[i].Callers {
			m.tell(m.holder.Answer(m.clock(), false, asks[i].Cost))
		}
	}
	waited := m.queue
	m.queue = nil
	for _, cost := range waited {
		m.decided(cost, m.holder.Retake(m.clock(), cost))
	}
}

func (m *member) fail() {
	m.holder.Fail()
	m.queue = nil
}

// tend looks after the member's lease until it holds nothing.
func (m *member) tend() {
	if m.tended {
		return
	}
	m.tended = true
	m.do(m.w.now+1000, m.tendNow)
}

func (m *member) tendNow() {
	claim, again := m.holder.Tend(m.clock())
	switch {
	case claim != nil:
		m.send(claim)
		m.do(m.w.now+20_000, m.tendNow)
	case again > 0:
		m.do(m.w.now+max(1, again.Microseconds()), m.tendNow)
	default:
		m.tended = false
	}
}

// stop gives back what the member holds, as a shutdown does.
func (m *member) stop() {
	if !m.holder.Flying() {
		m.send(m.holder.Return(m.clock()))
	}
	m.dead = true
}

func (w *world) use(cost int64) {
	if cost > 0 {
		w.uses = append(w.uses, use{w.now, cost})
	}
}

// at sets something to happen; what is set for one time happens in the order in which it was set.
func (w *world) at(at int64, what func()) {
	heap.Push(&w.events, event{max(at, w.now), w.events.pushed, what})
	w.events.pushed++
}

// run lets things happen until a time.
func (w *world) run(until int64) {
	for len(w.events.list) > 0 && w.events.list[0].at <= until {
		e := heap.Pop(&w.events).(event) //nolint:forcetypeassert // what a heap of events holds
		w.now = e.at
		e.what()
	}
	w.now = until
}

type event struct {
	at    int64
	order int
	what  func()
}

type events struct {
	list   []event
	pushed int
}

func (e *events) Len() int { return len(e.list) }
func (e *events) Less(i, j int) bool {
	a, b := e.list[i], e.list[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}
func (e *events) Swap(i, j int) { e.list[i], e.list[j] = e.list[j], e.list[i] }
func (e *events) Push(x any)    { e.list = append(e.list, x.(event)) } //nolint:forcetypeassert // see run
func (e *events) Pop() any {
	last := e.list[len(e.list)-1]
	e.list = slices.Delete(e.list, len(e.list)-1, len(e.list))
	return last
}
