# SPDX-License-Identifier: Apache-2.0
# test_debian.sh BUILD_DIR WORK_DIR - cpack makes Debian packages of this build: their names and what they depend on, no file in two of
# them, copyright, changelog and pages inside; unpacked into one folder, their commands run. Exit status 77 without dpkg's tools.
# test_install.sh builds against the same files, tests/packages.sh installs the packages for real.
set -eu
build=$1 work=$2
for tool in cpack dpkg-deb dpkg-shlibdeps gzip; do
    command -v "$tool" >/dev/null || { echo "$tool is missing (Debian packages cmake, dpkg-dev)" && exit 77; }
done
fail() { echo "FAIL: $*" && exit 1; }

rm -rf "$work"
mkdir -p "$work/root"
cpack --config "$build/CPackConfig.cmake" -B "$work" >"$work/log" 2>&1 || { tail -n 20 "$work/log" && fail cpack; }

# package NAME DEPENDS...: it is there, with these among what it depends on
package() {
    file=$(ls "$work/$1"_*.deb) || fail "no package $1"
    depends=", $(dpkg-deb -f "$file" Depends),"
    name=$1
    shift
    for want in "$@"; do
        case $depends in
        *", $want "* | *", $want,"*) ;;
        *) fail "$name depends on \"$depends\", and not on $want" ;;
        esac
    done
    dpkg-deb -c "$file" | sed -n 's/^[^d].* \(\.\/[^ ]*\)\( -> .*\)*$/\1/p' >>"$work/files"
    dpkg-deb -x "$file" "$work/root"
    [ -s "$work/root/usr/share/doc/$name/copyright" ] || fail "$name has no copyright file"
    gzip -dc "$work/root/usr/share/doc/$name/changelog.Debian.gz" | grep -q '^ -- .* <.*>  ...,' || fail "$name has no changelog"
}
package libzfplugin1 libc6 libinih1 libjansson4
package libzfplugin-dev libzfplugin1
package zfplugin-tools libzfplugin1 libjansson4 python3
package zfplugin-conformance libzfplugin1 libopenblas0 libffi8
[ ! -e "$build/bindings/mpi/libzf_mpi.so" ] || package libzf-mpi libzfplugin-dev
[ -z "$(sort "$work/files" | uniq -d)" ] || fail "in two packages: $(sort "$work/files" | uniq -d)"

usr=$work/root/usr
libs=$(dirname "$(find "$usr" -name 'libzfplugin.so.1')")
for page in man1/zf.1 man1/zf-conform.1 man1/zf-host.1 man3/zf_step.3 man3/zf_state_save.3; do
    [ -s "$usr/share/man/$page.gz" ] || fail "no page $page"
done
unset ZFPLUGIN_PATH
LD_LIBRARY_PATH=$libs "$usr/bin/zf" doctor --quick >"$work/doctor"
"$usr/bin/zf" tune 2>&1 | grep -q 'required: --command' || fail "zf tune does not find tune.py"
LD_LIBRARY_PATH=$libs "$usr/bin/zf-conform" exact --plugin "$libs/libzfplugin.so.1" --cases 1 >"$work/exact"
