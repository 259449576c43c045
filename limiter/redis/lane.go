package redis

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/limiter"
)

const (
	// maxWaiting bounds the callers that wait in a lane; more would not be served in time.
	maxWaiting = 16_384
	// maxBatch bounds the calls of a batch, so that the server serves others between batches.
	maxBatch = 512
	// maxCallers bounds the callers of one call.
	maxCallers = 1024
)

var (
	// ErrBusy tells that too many callers wait for the server.
	ErrBusy = errors.New("too many callers wait for the store")
	// ErrClosed tells that the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// lane sends calls to one server, one batch at a time: whoever comes while a batch is on its way goes with the next.
// So a lone caller never waits, and the more callers there are, the more of them share a round trip.
type lane struct {
	send    func([]*call)
	undo    func(c *call, place int) // what was charged to a caller that left while the call was on its way
	running sync.WaitGroup

	mu      sync.Mutex
	queue   []*call                 // in order of arrival, not yet sent
	open    map[limiter.Check]*call // those of the queue that others may join, by their first check
	waiting int                     // callers in the queue
	busy    bool
	closed  bool
}

func newLane(send func([]*call), undo func(*call, int)) *lane {
	return &lane{send: send, undo: undo, open: map[limiter.Check]*call{}}
}

// call is one call of the script. Callers that ask exactly the same share it: each is decided by itself, in order.
type call struct {
	checks   []limiter.Check
	back     []int64        // what is taken back, one a check; nil = decide
	attempts int            // to be counted, though nobody waits
	claim    *limiter.Claim // instead of a decision; checks has its rule and key
	joined   int
	left     []int // who of them left before it was sent
	sent     bool
	gone     []int // who of them left after that, by place
	answered bool

	sentAt     time.Time
	connection int
	done       chan struct{} // closed once reply and err are set; nil = nobody waits
	reply      string
	err        error
}

// join adds a caller and returns its number in the call.
func (l *lane) join(checks []limiter.Check) (*call, int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting >= maxWaiting {
		return nil, 0, ErrBusy
	}
	c := l.open[checks[0]]
	if c == nil || c.joined == maxCallers || !slices.Equal(c.checks, checks) {
		c = &call{checks: slices.Clone(checks), done: make(chan struct{})}
		if err := l.add(c); err != nil {
			return nil, 0, err
		}
		l.open[checks[0]] = c
	}
	c.joined++
	l.waiting++
	return c, c.joined - 1, nil
}

// post adds a call that nobody joins.
func (l *lane) post(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.add(c)
}

// lone adds a call that one caller waits for and no other joins.
func (l *lane) lone(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.add(c); err != nil {
		return err
	}
	c.joined, c.done = 1, make(chan struct{})
	l.waiting++
	return nil
}

func (l *lane) add(c *call) error {
	if l.closed {
		return ErrClosed
	}
	if len(l.queue) >= maxWaiting {
		return ErrBusy
	}
	l.queue = append(l.queue, c)
	if !l.busy {
		l.busy = true
		l.running.Go(l.run)
	}
	return nil
}

// leave takes a caller out of a call. If that was sent already, what it charges the caller is taken back, unless the
// caller may pass by another way: then it counts.
func (l *lane) leave(c *call, number int, passes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !c.sent:
		c.left = append(c.left, number)
		l.waiting--
	case passes:
	case !c.answered:
		c.gone = append(c.gone, c.place(number))
	case !l.closed:
		l.running.Go(func() { l.undo(c, c.place(number)) })
	}
}

func (l *lane) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.running.Wait()
}

func (l *lane) run() {
	for {
		batch, more := l.next()
		if len(batch) > 0 {
			l.send(batch)
		}
		for _, c := range batch {
			l.finish(c)
		}
		if !more {
			return
		}
	}
}

func (l *lane) finish(c *call) {
	if c.done != nil {
		close(c.done)
	}
	l.mu.Lock()
	c.answered = true
	gone := c.gone
	l.mu.Unlock()
	for _, place := range gone {
		l.undo(c, place)
	}
}

// next takes a batch out of the queue; false if the queue is empty, and the lane comes to rest.
func (l *lane) next() ([]*call, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.busy, l.queue = false, nil
		return nil, false
	}
	n := min(len(l.queue), maxBatch)
	batch := make([]*call, 0, n)
	for _, c := range l.queue[:n] {
		c.sent = true
		l.waiting -= c.callers()
		if l.open[c.checks[0]] == c {
			delete(l.open, c.checks[0])
		}
		if c.done == nil || c.callers() > 0 {
			batch = append(batch, c)
		}
	}
	l.queue = l.queue[n:]
	return batch, true
}

// callers is how many wait for the call.
func (c *call) callers() int { return c.joined - len(c.left) }

// receipt names what is taken back of a check.
func (c *call) receipt(i int) int64 {
	if c.back == nil {
		return 0
	}
	return c.back[i]
}

// place is the position of a caller among those that did not leave.
func (c *call) place(number int) int {
	place := number
	for _, n := range c.left {
		if n < number {
			place--
		}
	}
	return place
}
