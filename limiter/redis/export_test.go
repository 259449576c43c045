package redis

import (
	"strings"

	"github.com/sluice-dev/sluice/limiter"
)

// TestTime is the key from which a store made by WithTestTime reads the time, in microseconds.
const TestTime = "test:now"

// WithTestTime makes the script read the time from a key instead of the server's clock. Only tests of this package can.
func (s *Store) WithTestTime() *Store {
	source := strings.Replace(decideSource,
		"local time = redis.call('TIME')\nlocal now = time[1] * 1000000 + time[2]\n",
		"local now = tonumber(redis.call('GET', '"+TestTime+"'))\n", 1)
	if source == decideSource {
		panic("the script reads the time in another way than this test knows")
	}
	// The server's own time runs on, so that keys must not end by it.
	source = strings.Replace(source, "max(1, ceildiv(life, 1000))", "3600000", 1)
	s.script = newScript(source)
	return s
}

// Fold decides a request for n callers in one call.
func (s *Store) Fold(checks []limiter.Check, n int) ([][]limiter.Result, error) {
	c := &call{checks: checks, joined: n}
	s.send([]*call{c})
	if c.err != nil {
		return nil, c.err
	}
	all := make([][]limiter.Result, n)
	for i := range all {
		var err error
		if all[i], err = decode(checks, c.reply, c.place(i)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Waiting is how many callers wait for a batch that is on its way.
func (s *Store) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, l := range s.lanes {
		l.mu.Lock()
		n += l.waiting
		l.mu.Unlock()
	}
	return n
}

// Idle tells that nothing is on its way.
func (s *Store) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		l.mu.Lock()
		busy := l.busy
		l.mu.Unlock()
		if busy {
			return false
		}
	}
	return true
}
