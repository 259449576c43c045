package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Status writes what is recorded of each cluster of the machine, or of the named
// one, and what of it is alive.
func Status(ctx context.Context, t Tools, name string, out io.Writer) error {
	all, err := t.Registry.All()
	if err != nil {
		return err
	}
	shown := 0
	for _, state := range all {
		if name != "" && state.Plan.Name != name {
			continue
		}
		shown++
		if err := state.describe(ctx, out); err != nil {
			return err
		}
	}
	if shown == 0 {
		_, err = fmt.Fprintln(out, "no cluster runs")
	}
	return err
}

// describe writes one cluster's state.
func (s State) describe(ctx context.Context, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	p := s.Plan
	facts := [][2]string{
		{"cluster", p.Name},
		{"health", s.health(ctx)},
		{"nodes", strconv.Itoa(p.Nodes)},
		{"API server", p.Server()},
		{"pods, services", p.ClusterRange().String() + ", " + p.ServiceRange().String()},
		{"folder", p.Dir},
		{"kubeconfig", p.Kubeconfig()},
	}
	for _, row := range slices.Concat(facts, s.lives()) {
		if _, err := fmt.Fprintf(table, "%s\t%s\n", row[0], row[1]); err != nil {
			return err
		}
	}
	return table.Flush()
}

// lives says of each process whether it runs.
func (s State) lives() [][2]string {
	rows := make([][2]string, 0, len(s.Processes))
	for _, process := range s.Processes {
		life := "has ended"
		if process.Alive() {
			life = "runs (" + strconv.Itoa(process.PID) + ")"
		}
		rows = append(rows, [2]string{process.Name, life})
	}
	return rows
}

// health sums up whether the cluster can be used.
func (s State) health(ctx context.Context) string {
	if !s.Ready {
		return "being started, or its start was broken off"
	}
	var dead []string
	for _, process := range s.Processes {
		if !process.Alive() {
			dead = append(dead, process.Name)
		}
	}
	if len(dead) > 0 {
		return "broken: " + strings.Join(dead, ", ") + " ended"
	}
	api, err := newAPIClient(s.Plan)
	if err != nil {
		return "broken: " + err.Error()
	}
	var nodes nodeList
	if err := api.get(ctx, "/api/v1/nodes", &nodes); err != nil {
		return "broken: " + err.Error()
	}
	if err := nodes.unready(s.Plan.Nodes); err != nil {
		return err.Error()
	}
	return "ready"
}

// Open finds a running cluster for use.
func Open(t Tools, name string) (*Cluster, error) {
	state, err := t.Registry.Load(name)
	if err != nil {
		return nil, err
	}
	if !state.Ready {
		return nil, fmt.Errorf("cluster %q is not ready", name)
	}
	return &Cluster{Tools: t, state: state, broken: func(error) {}}, nil
}

// Plan is the cluster's plan.
func (c *Cluster) Plan() Plan { return c.state.Plan }
