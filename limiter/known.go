package limiter

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
)

// maxKnown bounds the callers whose standing is known; the share of others begins empty.
const maxKnown = 16_384

// known is how the limits of callers stood when their store last told, so that this process's share of them begins as
// used as they were when the store fails.
type known struct {
	clock clock.Clock
	mu    sync.Mutex
	told  map[queue]standing
}

type standing struct {
	at     time.Time
	limits []State
}

func newKnown(c clock.Clock) *known { return &known{clock: c, told: map[queue]standing{}} }

func (k *known) note(checks []Check, results []Result) {
	now := k.clock.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, c := range checks {
		if !fallsBackToShare(c.Rule) || results[i].Source != FromStore {
			continue
		}
		if len(k.told) >= maxKnown {
			for any := range k.told {
				delete(k.told, any)
				break
			}
		}
		k.told[queue{c.Rule, c.Key}] = standing{now, results[i].Limits}
	}
}

// take returns how a caller's limits stood, once, and how long ago that was told.
func (k *known) take(c *Check) ([]State, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := queue{c.Rule, c.Key}
	s := k.told[q]
	delete(k.told, q)
	return s.limits, k.clock.Now().Sub(s.at)
}

func fallsBackToShare(r *Rule) bool { return r.OnFailure != FailAllow && r.OnFailure != FailDeny }

// prime charges the share of a caller with its part of what is known to be used.
func (e *Engine) prime(ctx context.Context, c *Check) error {
	states, ago := e.known.take(c)
	for i, s := range states {
		if s.ResetAfter <= ago {
			continue // nothing of it counts any more
		}
		part := *shares([]Check{*c})[0].Rule
		part.Limits, part.Shadow = part.Limits[i:i+1], false
		if used := partOf(s.Current, c.Rule.Limits[i], part.Limits[0]); used > 0 {
			if _, err := e.local.Decide(ctx, []Check{{Rule: &part, Key: c.Key, Cost: used}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// partOf is the part of what is used that falls to a share, rounded up; of a share that has a longer window, because the
// limit is smaller than the number of shares, rounded down.
func partOf(used int64, whole, part Limit) int64 {
	if whole.Requests == 0 {
		return 0
	}
	product := min(used, whole.Capacity()) * part.Capacity()
	if part.Window == whole.Window {
		product += whole.Capacity() - 1
	}
	return product / whole.Capacity()
}
