package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/hack/testbed"
)

// tour shows what users see, in the order in which they would meet it.
func (d *demo) tour(ctx context.Context, k testbed.Kubectl) error {
	ip, err := k.Get(ctx, "-n", "shop", "get", "service", "shop", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	url := "http://" + ip + "/"
	for _, step := range []func(context.Context, testbed.Kubectl, string) error{
		d.showStatus, d.showService, d.showSharing, d.showEdit, d.showAdmission, d.showDeletion,
	} {
		if err := step(ctx, k, url); err != nil {
			return err
		}
	}
	return nil
}

// showStatus waits until every sidecar enforces the policy.
func (d *demo) showStatus(ctx context.Context, k testbed.Kubectl, _ string) error {
	const patience = 2 * time.Minute
	var shown string
	took, err := testbed.Await(ctx, d.clock, patience, func() (bool, error) {
		var err error
		shown, err = k.Get(ctx, "get", "rlp", "-A")
		return err == nil && enforced(shown), err
	})
	d.out.line("kubectl get rlp -A")
	d.out.block(shown)
	if err != nil {
		described, _ := k.Get(ctx, "-n", "shop", "describe", "rlp", "shop")
		d.out.block(described)
	}
	d.report.expect(err == nil, inCluster+": kubectl get rlp says Ready True, Programmed True, 3/3",
		"seen after %s", took.Round(time.Millisecond))
	return err
}

// enforced reads the printed table as an operator does.
func enforced(shown string) bool {
	lines := strings.Split(strings.TrimSpace(shown), "\n")
	if len(lines) != 2 {
		return false
	}
	titles, cells := strings.Fields(lines[0]), strings.Fields(lines[1])
	want := map[string]string{"READY": "True", "PROGRAMMED": "True", "SIDECARS": fmt.Sprintf("%d/%d", replicas, replicas)}
	for title, value := range want {
		i := slices.Index(titles, title)
		if i < 0 || i >= len(cells) || cells[i] != value {
			return false
		}
	}
	return true
}

func (d *demo) showService(ctx context.Context, _ testbed.Kubectl, url string) error {
	if err := d.awaitSpread(ctx, url); err != nil {
		return err
	}
	d.out.line("calling through the Service at %s, a connection for each call", url)
	return d.showTiers(ctx, inCluster, url)
}

// awaitSpread waits until the Service reaches all replicas: kube-proxy learns of a new pod a moment after kubectl does.
func (d *demo) awaitSpread(ctx context.Context, url string) error {
	const patience = 30 * time.Second
	tries := 0
	_, err := testbed.Await(ctx, d.clock, patience, func() (bool, error) {
		tries++ // each try has a caller of its own, so that no limit is in its way
		scout, err := d.bearer(fmt.Sprintf("scout-%d", tries), "premium", "premium")
		if err != nil {
			return false, err
		}
		t, err := burst(ctx, newClient(), url, scout, premiumLimit)
		return len(t.pods()) == replicas, err
	})
	if err != nil {
		return fmt.Errorf("the Service does not reach %d replicas: %w", replicas, err)
	}
	return nil
}

// showSharing calls every replica by its own address: together they admit one limit.
func (d *demo) showSharing(ctx context.Context, k testbed.Kubectl, _ string) error {
	list, err := k.Get(ctx, "-n", "shop", "get", "pods", "-l", "app=shop", "-o", "jsonpath={.items[*].status.podIP}")
	if err != nil {
		return err
	}
	shared, err := d.bearer("max", "premium", "premium")
	if err != nil {
		return err
	}
	all := tally{caller: shared}
	var each []string
	for ip := range strings.FieldsSeq(list) {
		t, err := burst(ctx, newClient(), "http://"+ip+":8080/", shared, premiumLimit/2)
		if err != nil {
			return err
		}
		all.answers = append(all.answers, t.answers...)
		each = append(each, t.statuses())
	}
	passed := len(all.with(http.StatusOK))
	d.report.expect(passed == premiumLimit && len(each) == replicas && len(all.pods()) > 1,
		fmt.Sprintf("%s: %d replicas keep one limit of %d", inCluster, replicas, premiumLimit),
		"%d calls to each replica, %d admitted in all (%s)", premiumLimit/2, passed, strings.Join(each, " | "))
	return nil
}

// showEdit changes a limit while the shop runs.
func (d *demo) showEdit(ctx context.Context, k testbed.Kubectl, url string) error {
	d.out.line("kubectl patch: authenticated callers may now call %d times in 10 s", newKnownLimit)
	patch := fmt.Sprintf(`[{"op": "test", "path": "/spec/rules/0/limits/1/tier", "value": "authenticated"},
		{"op": "replace", "path": "/spec/rules/0/limits/1/requests", "value": %d}]`, newKnownLimit)
	edited := d.clock.Now()
	if err := k.Run(ctx, "-n", "shop", "patch", "rlp", "shop", "--type=json", "-p", patch); err != nil {
		return err
	}
	const patience = time.Minute
	_, err := testbed.Await(ctx, d.clock, patience, func() (bool, error) {
		state, err := k.Get(ctx, "-n", "shop", "get", "rlp", "shop", "-o",
			`jsonpath={.metadata.generation} {range .status.conditions[?(@.type=="Programmed")]}{.observedGeneration} {.status}{end}`)
		fields := strings.Fields(state)
		return err == nil && len(fields) == 3 && fields[0] == fields[1] && fields[2] == "True", err
	})
	if err != nil {
		return fmt.Errorf("the edit is not acknowledged: %w", err)
	}
	return d.checkNewLimit(ctx, inCluster, url, d.clock.Now().Sub(edited))
}

// showAdmission tries to break the policy.
func (d *demo) showAdmission(ctx context.Context, k testbed.Kubectl, _ string) error {
	broken := `[{"op": "replace", "path": "/spec/tiers/1/when", "value": "identity.authenticated && identity.authentic"}]`
	_, err := k.Get(ctx, "-n", "shop", "patch", "rlp", "shop", "--type=json", "-p", broken)
	said := "it was accepted"
	if refused, is := errors.AsType[*testbed.KubectlError](err); is {
		said = lastLine(refused.Said)
	}
	d.report.expect(err != nil && strings.Contains(said, "spec.tiers[1].when") && strings.Contains(said, "1:27"),
		inCluster+": a policy with a mistake in an expression is refused, with the field and the column", "%s", said)
	return nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// showDeletion ends the policy, and with it the limit.
func (d *demo) showDeletion(ctx context.Context, k testbed.Kubectl, url string) error {
	d.out.line("kubectl delete rlp shop")
	if err := k.Run(ctx, "-n", "shop", "delete", "rlp", "shop"); err != nil {
		return err
	}
	const patience = 30 * time.Second
	const calls = 4 * freeLimit
	var last tally
	took, err := testbed.Await(ctx, d.clock, patience, func() (bool, error) {
		t, err := burst(ctx, newClient(), url, caller{name: "anyone"}, calls)
		last = t
		return err == nil && len(t.with(http.StatusOK)) == calls && t.answers[calls-1].limit == "", err
	})
	d.report.expect(err == nil, inCluster+": deleting the policy lifts the limit",
		"an anonymous caller gets %s, %s after the deletion", last.statuses(), took.Round(time.Millisecond))
	return nil
}
