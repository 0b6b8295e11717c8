// A function declared without a body (see the go:linkname lines) compiles only in a package with an assembly file.
