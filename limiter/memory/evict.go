package memory

import (
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
)

// evictionSample is how many counters of a full shard are looked at, to find the one nearest to its end.
const evictionSample = 32

// evict makes room: for all that has ended, or else for one, taking what is nearest to its end among a sample, since
// a counter that is forgotten early hands its caller a fresh one.
func (s *Store) evict(sh *shard, now int64) {
	var victim key
	nearest, seen := int64(1<<63-1), 0
	for k, c := range sh.counters {
		end := c.expires()
		if end <= now {
			delete(sh.counters, k)
			continue
		}
		if end < nearest {
			victim, nearest = k, end
		}
		if seen++; seen == evictionSample {
			break
		}
	}
	if len(sh.counters) >= s.perShard {
		delete(sh.counters, victim)
		s.evicted.Add(1)
	}
}

type clockReading struct{ at time.Time }

func (r clockReading) microsUntil(c clock.Clock) int64 { return c.Now().Sub(r.at).Microseconds() }
