// Package intercept redirects a pod's inbound TCP traffic to the sidecar, with nftables through netlink:
// no shell and no program of the system takes part.
//
// It runs once, in an init container, in the pod's own network namespace. It knows nothing of Kubernetes.
package intercept

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	tableName = "sluice"
	chainName = "inbound"
	setName   = "guarded"
)

// ErrNoPorts tells that there is nothing to redirect.
var ErrNoPorts = errors.New("no ports to redirect")

// Redirect makes TCP connections that reach this network namespace from outside on one of the ports, over IPv4
// or IPv6, arrive at port to; the original port is what SO_ORIGINAL_DST says. Connections over the loopback
// interface are left alone, so that the sidecar and the pod's own containers reach the application.
//
// The rules replace those of a former call in one transaction, so calling it again is safe.
func Redirect(ports []uint16, to uint16) error {
	if len(ports) == 0 {
		return ErrNoPorts
	}
	if slices.Contains(ports, to) {
		return fmt.Errorf("port %d can't be redirected to itself", to)
	}
	connection, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	if err := queue(connection, ports, to); err != nil {
		return err
	}
	if err := connection.Flush(); err != nil {
		return fmt.Errorf("write nftables rules (is NET_ADMIN granted?): %w", err)
	}
	return nil
}

// queue lays the whole table down; adding it first makes its deletion valid where there was none.
func queue(connection *nftables.Conn, ports []uint16, to uint16) error {
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	connection.AddTable(table)
	connection.DelTable(table)
	connection.AddTable(table)

	guarded := &nftables.Set{Table: table, Name: setName, KeyType: nftables.TypeInetService}
	if err := connection.AddSet(guarded, elements(ports)); err != nil {
		return fmt.Errorf("queue the set of ports: %w", err)
	}
	chain := connection.AddChain(&nftables.Chain{
		Table:    table,
		Name:     chainName,
		Type:     nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityNATDest,
	})
	connection.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: redirectGuarded(guarded, to)})
	return nil
}

func elements(ports []uint16) []nftables.SetElement {
	sorted := slices.Compact(slices.Sorted(slices.Values(ports)))
	list := make([]nftables.SetElement, 0, len(sorted))
	for _, port := range sorted {
		list = append(list, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(port)})
	}
	return list
}

// redirectGuarded is: iifname != "lo" fib daddr type local meta l4proto tcp tcp dport @guarded redirect to :port.
func redirectGuarded(guarded *nftables.Set, to uint16) []expr.Any {
	const (
		register     = unix.NFT_REG_1
		tcpDportFrom = 2
		portBytes    = 2
	)
	loopback := make([]byte, unix.IFNAMSIZ)
	copy(loopback, "lo")
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: loopback},
		&expr.Fib{Register: register, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: tcpDportFrom, Len: portBytes},
		&expr.Lookup{SourceRegister: register, SetName: guarded.Name, SetID: guarded.ID},
		&expr.Immediate{Register: register, Data: binaryutil.BigEndian.PutUint16(to)},
		&expr.Redir{RegisterProtoMin: register},
	}
}
